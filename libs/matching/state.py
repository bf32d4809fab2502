"""The state in Redis: the script's text, its arguments and its reply. The service supplies the connection."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from operator import attrgetter
from typing import Any

import msgspec

from libs.matching.plan import Earlier, Late, Limits, Plan, Result

SCRIPT = "".join((files("libs.matching") / name).read_text(encoding="utf-8") for name in ("rules.lua", "remember.lua"))
PREFIX = "clawback:m:"
_OPAQUE = ("light", "heavy", "answer")
_FIELDS = tuple(f for f in Plan.__struct_fields__ if f not in _OPAQUE)
_values, _opaque = attrgetter(*_FIELDS), attrgetter(*_OPAQUE)


def key_prefix(slot: str) -> str:
    """Prefix of every key of one tenant's scenario; the braces make it the hash tag."""
    return f"{PREFIX}{{{slot}}}:"


def arguments(plans: Sequence[Plan], limits: Limits) -> list[bytes]:
    """ARGV of the script. The plans are of one slot; they are applied in this order."""
    found = [_packed(limits)]
    for plan in plans:
        found += (msgspec.msgpack.encode(dict(zip(_FIELDS, _values(plan), strict=True))), *_opaque(plan))
    return found


@cache
def _packed(limits: Limits) -> bytes:
    return msgspec.msgpack.encode(limits)


def result(reply: list[Any]) -> Result:
    """The script's reply for one plan as a result."""
    (turn, at, turn_session, level, narrowed, reason, kind, session, gap, repeats, rejects, expired, evicted) = reply[
        :13
    ]
    light, heavy, earlier, late, rejected_light, rejected_heavy = reply[13:]
    return Result(
        turn=turn.decode(),
        at=at,
        turn_session=turn_session.decode(),
        level=level.decode(),
        narrowed=bool(narrowed),
        reason=reason.decode(),
        kind=kind.decode(),
        session=session.decode(),
        gap=float(gap),
        repeats=repeats.decode(),
        rejects=rejects.decode(),
        expired=expired,
        evicted=evicted,
        light=light,
        heavy=heavy,
        earlier=[Earlier(i.decode(), small, body) for i, small, body in earlier],
        late=[Late(i.decode(), at_level.decode(), answer) for i, at_level, answer in late],
        rejected_light=rejected_light,
        rejected_heavy=rejected_heavy,
    )
