"""Events that the trainer writes without a batch: a chain told again to a new log, and commands that are refused."""

from __future__ import annotations

from libs.contracts import BASE_RELEASE, PolicyRelease
from libs.contracts.policy_releases import Event
from libs.contracts.release_chain import Chain


def announcements(chain: Chain) -> list[PolicyRelease]:
    """The kept part of a chain once more, for readers of a new log; empty where there is none.

    In the order in which the releases were made, the serving one last, so that folding the events gives this chain: its
    serving release and the held ones that can be promoted. They name no batch: each batch has had its event.
    """
    serving, events = BASE_RELEASE, []
    for release in sorted(chain.releases.values(), key=lambda r: (r.release_id == chain.serving, r.number)):
        serving = release.release_id if release.status == "released" else serving
        reason = release.reason if release.status == "held" else _NEW_LOG
        events.append(_event(chain, release.release_id, serving, release.status, reason))
    if events and serving != chain.serving:
        events.append(_event(chain, chain.serving, chain.serving, "rolled_back", _NEW_LOG))
    return events


def refusal(chain: Chain, command: PolicyRelease) -> PolicyRelease:
    """Back to what serves here, so that engines which followed the command return as well."""
    reason = f"refused: the weights of {command.serving} are no longer kept"
    return _event(chain, chain.serving, chain.serving, "rolled_back", reason, created_at=command.created_at)


_NEW_LOG = "announced again: the log is new"


def _event(
    chain: Chain, release_id: str, serving: str, event: Event, reason: str, created_at: float | None = None
) -> PolicyRelease:
    release = chain.releases.get(release_id)
    made = release.created_at if release else max((r.created_at for r in chain.releases.values()), default=0.0)
    return PolicyRelease(
        event=event,
        release_id=release_id,
        parent_id=release.parent_id if release else None,
        serving=serving,
        scenario=chain.scenario,
        step=release.step if release else 0,
        number=release.number if release else 0,
        batch_id=None,
        trained=[],
        dropped={},
        reason=reason,
        weights=release.weights if release else None,
        metrics=release.metrics if release else {},
        created_at=made if created_at is None else created_at,
    )
