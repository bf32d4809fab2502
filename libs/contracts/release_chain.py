"""The release chain of one scenario: which releases there are, which one serves, what a rollback does. Pure.

A chain is a fold over the events of policy.releases, so trainer, policy, batcher and command line agree by reading
the same log. Every function returns a new chain; nothing is changed in place.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from typing import Literal

import msgspec

from libs.contracts import BASE_RELEASE, Adapter, PolicyRelease
from libs.contracts.policy_releases import Event, release_number
from libs.errors import DeadLetterError

Status = Literal["released", "held"]


class Release(msgspec.Struct, frozen=True, kw_only=True):
    """One candidate that a step made. `held` ones were kept back by the gate and can be promoted."""

    release_id: str
    parent_id: str  # the release whose weights it started from; "base" for the first
    status: Status
    number: int
    step: int
    batch_id: str
    weights: Adapter
    created_at: float
    reason: str = ""
    metrics: dict[str, float] = {}


class Chain(msgspec.Struct, frozen=True, kw_only=True):
    """`number` counts candidates made so far, held ones too; `step` counts optimizer steps behind the serving one."""

    scenario: str
    serving: str = BASE_RELEASE
    number: int = 0
    step: int = 0
    releases: dict[str, Release] = {}

    def lineage(self, release_id: str | None = None) -> list[str]:
        """The release (default: the serving one) and its ancestors, newest first, ending with the base."""
        out = []
        at = release_id or self.serving
        while at in self.releases and at not in out:
            out.append(at)
            at = self.releases[at].parent_id
        return [*out, at]

    def staleness(self, release_id: str) -> int | None:
        """How many releases the serving one is ahead of `release_id`; None when that is no ancestor of it.

        An id from another engine counts as the base. What is older than the chain remembers counts by its number.
        """
        number = release_number(release_id)
        known = release_id if number else BASE_RELEASE
        lineage = self.lineage()
        if known in lineage:
            return lineage.index(known)
        oldest = release_number(lineage[-1])
        return len(lineage) - 1 + oldest - number if number < oldest else None


def fold(chain: Chain, event: PolicyRelease) -> Chain:
    """The chain after `event`. Applying an event again changes nothing; an event about unknown weights is ignored."""
    if event.event in ("released", "held"):
        if event.release_id in chain.releases or event.weights is None:
            return chain
        release = Release(
            release_id=event.release_id,
            parent_id=event.parent_id or BASE_RELEASE,
            status="released" if event.event == "released" else "held",
            number=event.number,
            step=event.step,
            batch_id=event.batch_id or "",
            weights=event.weights,
            created_at=event.created_at,
            reason=event.reason,
            metrics=event.metrics,
        )
        return msgspec.structs.replace(
            chain,
            serving=event.serving,
            number=max(chain.number, event.number),
            step=event.step if release.status == "released" else chain.step,
            releases={**chain.releases, release.release_id: release},
        )
    if event.event in ("rolled_back", "promoted") and (
        event.serving in chain.releases or event.serving == BASE_RELEASE
    ):
        step = chain.releases[event.serving].step if event.serving in chain.releases else 0
        return msgspec.structs.replace(_released(chain, event.serving), serving=event.serving, step=step)
    return chain


def folded(scenario: str, events: Iterable[PolicyRelease]) -> Chain:
    """The chain after all of the scenario's events, in their order."""
    return reduce(fold, events, Chain(scenario=scenario))


def _released(chain: Chain, release_id: str) -> Chain:
    """The chain with a held release marked as released."""
    found = chain.releases.get(release_id)
    if found is None or found.status == "released":
        return chain
    changed = msgspec.structs.replace(found, status="released")
    return msgspec.structs.replace(chain, releases={**chain.releases, release_id: changed})


def rollback(chain: Chain, release_id: str | None, now: float) -> PolicyRelease:
    """The event that makes an earlier release serve again; without an id, the serving one's parent.

    Training goes on from that release. Raises DeadLetterError (reason "rollback") naming what can be chosen.
    """
    lineage = chain.lineage()
    target = release_id or (lineage[1] if len(lineage) > 1 else None)
    if target is None or target == chain.serving:
        raise DeadLetterError(f"{chain.serving} serves already; nothing to roll back to", reason="rollback")
    if target != BASE_RELEASE and target not in chain.releases:
        raise DeadLetterError(f"no release {target}; choose one of {', '.join(_choices(chain))}", reason="rollback")
    if target in chain.releases and chain.releases[target].status == "held":
        raise DeadLetterError(f"{target} is held back by the gate; use promote to serve it", reason="rollback")
    return _command("rolled_back", chain, target, now)


def promote(chain: Chain, release_id: str, now: float) -> PolicyRelease:
    """The event that makes a held release serve. Raises DeadLetterError (reason "promote") when it is not held."""
    found = chain.releases.get(release_id)
    if found is None or found.status != "held":
        held = [r.release_id for r in chain.releases.values() if r.status == "held"] or ["none is held"]
        raise DeadLetterError(f"{release_id} is not a held release; held: {', '.join(held)}", reason="promote")
    return _command("promoted", chain, release_id, now)


def _choices(chain: Chain) -> list[str]:
    return [BASE_RELEASE, *(r.release_id for r in chain.releases.values() if r.status == "released")]


def _command(event: Literal["rolled_back", "promoted"], chain: Chain, target: str, now: float) -> PolicyRelease:
    return without_batch(chain, target, target, event, f"{chain.serving} served before", now)


def without_batch(
    chain: Chain, release_id: str, serving: str, event: Event, reason: str, created_at: float
) -> PolicyRelease:
    """An event about a release of the chain (or the base) that no batch ends in: a command, or the log told anew."""
    found = chain.releases.get(release_id)
    return PolicyRelease(
        event=event,
        release_id=release_id,
        parent_id=found.parent_id if found else None,
        serving=serving,
        scenario=chain.scenario,
        step=found.step if found else 0,
        number=found.number if found else 0,
        batch_id=None,
        trained=[],
        dropped={},
        reason=reason,
        weights=found.weights if found else None,
        metrics=found.metrics if found and event in ("released", "held") else {},
        created_at=created_at,
    )
