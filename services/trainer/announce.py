"""Events that the trainer writes without a batch: a chain told again to a new log, and commands that are refused."""

from __future__ import annotations

from libs.contracts import BASE_RELEASE, PolicyRelease
from libs.contracts.release_chain import Chain, without_batch

_NEW_LOG = "announced again: the log is new"


def announcements(chain: Chain) -> list[PolicyRelease]:
    """The kept part of a chain once more, for readers of a new log; empty where there is none.

    In the order and with the times at which the releases were made, so that folding the events gives this chain, and a
    last word where another one than the newest serves. They name no batch: each batch has had its event.
    """
    serving, last, events = BASE_RELEASE, 0.0, []
    for release in sorted(chain.releases.values(), key=lambda r: r.number):
        serving = release.release_id if release.status == "released" else serving
        reason = release.reason if release.status == "held" else _NEW_LOG
        last = max(last, release.created_at)
        events.append(without_batch(chain, release.release_id, serving, release.status, reason, release.created_at))
    if events and serving != chain.serving:
        events.append(without_batch(chain, chain.serving, chain.serving, "rolled_back", _NEW_LOG, last + 0.001))
    return events


def overtaken(chain: Chain, command: PolicyRelease) -> PolicyRelease | None:
    """The command once more, when a step that had begun before it put its release behind it in the log.

    Readers go by the log's order, or by time: the last word there must be what was obeyed here.
    """
    newest = max((r.created_at for r in chain.releases.values()), default=0.0)
    if chain.serving != command.serving or newest <= command.created_at:
        return None
    reason = "again: a release was made meanwhile"
    return without_batch(chain, command.release_id, command.serving, command.event, reason, newest + 0.001)


def refusal(chain: Chain, command: PolicyRelease) -> PolicyRelease:
    """Back to what serves here, so that engines which followed the command return as well."""
    reason = f"refused: the weights of {command.serving} are no longer kept"
    return without_batch(chain, chain.serving, chain.serving, "rolled_back", reason, command.created_at)
