"""Who a request belongs to: the space it may be matched in, and the conversation it names."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from libs.contracts import TrafficRaw
from libs.dialects.hints import agent_hint, session_hint, tag_of
from libs.matching.canonical import apart


@dataclass(frozen=True, slots=True)
class Identity:
    """`slot` (the Redis hash tag) covers one tenant's scenario; `space` also the tag: nothing is bound across spaces.

    `session` is "tag:<value>" or "hint:<value>", or "" when the request names no conversation. `agent` is the mark
    of a sub-agent, "" for the conversation's own calls.
    """

    slot: str
    space: str
    session: str
    tagged: bool
    hinted: bool
    agent: str


def identify(record: TrafficRaw) -> Identity:
    """Read the identity of a record; values are digested part by part, so separators in them never collide."""
    tag = tag_of(record.headers)
    hint = session_hint(record.headers, record.request)
    agent = agent_hint(record.headers, record.request)
    slot, space = _places(record.tenant, record.scenario, tag)
    session = f"tag:{tag}" if tag else f"hint:{hint[1]}" if hint else ""
    return Identity(
        slot=slot,
        space=space,
        session=session,
        tagged=tag is not None,
        hinted=hint is not None,
        agent=agent[1] if agent else "",
    )


@lru_cache(maxsize=4096)
def _places(tenant: str, scenario: str, tag: str | None) -> tuple[str, str]:
    """Slot and space."""
    slot = apart(tenant, scenario)
    return slot, apart(slot, tag or "", "tagged" if tag else "")
