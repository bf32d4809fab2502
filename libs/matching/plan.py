"""What a matcher asks its state, and what it gets back. Both cross the wire to Redis as msgpack.

Keys are digests that already hold the space they may match in. A level says what kind of evidence a key stands for;
within a slot the levels are tried in the order given.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Level = Literal["response", "dropped", "chain", "local", "near", "reply", "lines", "bridge", "newest"]
Kind = Literal["main", "side", "compaction"]

CONFIDENCE: dict[str, float] = {
    "response": 1.0,
    "chain": 0.99,
    "local": 0.97,
    "near": 0.93,
    "reply": 0.9,
    "dropped": 0.9,
    "lines": 0.8,
    "bridge": 0.8,
    "newest": 0.6,
}


class Slot(msgspec.Struct, frozen=True):
    """One assistant message of a request, where a served reply may sit."""

    probes: list[tuple[str, str]]  # (level, key), strongest first
    mark: str  # names a short text, which clients may have put there themselves; "" for any other
    lines: list[str]  # keys of its lines, last line first
    run: int  # equal for assistant messages in a row
    filler: bool = False  # a placeholder by its wording


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Everything about one exchange that the state needs to bind it and to let others bind to it."""

    id: str
    slot: str  # hash tag
    now: float  # received_at
    done: float  # completed_at
    delivered: bool  # a reply, whole or partial, reached the client
    outcome: str  # completed | client_gone | upstream_error
    session: str
    tagged: bool
    kind: Kind
    reason: str  # why a side call is one
    retries: int  # the client's own count
    same: str  # key of the whole request
    dropped: list[str]  # keys of cut-short exchanges that this request would extend if it had left their reply out
    previous: str  # key of the response named as the previous one
    slots: list[Slot]  # newest first
    bridge: list[str]  # of the other messages
    unless: list[str]  # of what a compaction call is known by: with a served summary in it, it is a main turn after all
    spawn: list[str]  # of a first message: was it an argument of a call?
    bare: bool  # brings no history
    person: bool  # the newest user message holds a person's words
    results: bool  # the newest messages are tool results
    prompt: str  # digest of system prompt and tools
    seen: list[str]  # ids in the newest assistant message and in the tool results after it
    ids: list[str]  # ids in the own reply
    calls: bool  # the own reply calls tools
    keys: list[tuple[str, str]]  # (level, key) of the own reply
    own_cut: list[str]  # keys of the request, when the reply was cut short
    own_lines: list[str]
    own_heads: list[str]  # marks of the first line of each choice
    own_spawns: list[str]
    own_response: str
    brought: list[str]  # marks of the short assistant texts in the request
    captured: bool
    light: bytes  # what later records show of this turn
    heavy: bytes  # request, response and capture
    answer: bytes  # what a binding made later by the turn needs of this exchange


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of the state. Times in seconds."""

    ttl_seconds: float = 86_400.0  # a reply may be answered this long after it
    tombstone_seconds: float = 7 * 86_400.0  # that long a late answer can be told from one to a reply never served
    slack_seconds: float = 5.0  # clocks of gateways may differ by this
    spawn_seconds: float = 3_600.0
    max_sessions: int = 200_000  # open sessions per tenant and scenario
    max_turns: int = 64  # kept per session
    max_session_bytes: int = 4 * 1024 * 1024
    earlier_turns: int = 8
    earlier_bytes: int = 256 * 1024
    max_entries: int = 8  # exchanges under one key


class Late(msgspec.Struct, frozen=True):
    """An answer that was read before the turn it answers."""

    id: str
    level: str
    answer: bytes


class Earlier(msgspec.Struct, frozen=True):
    """An earlier turn of the session; `heavy` is empty when it was not captured or did not fit."""

    id: str
    light: bytes
    heavy: bytes


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What the state made of a plan. The same plan again gives the same result."""

    turn: str  # the exchange whose reply is answered, or ""
    at: int  # index of the slot, or of the bridge line, where it was found; -1 elsewhere
    turn_session: str  # the conversation that the turn's request named, or ""
    level: str
    narrowed: bool  # more than one candidate, told apart by ids, session or order
    reason: str
    kind: str  # exchange class
    session: str
    gap: float  # reply delivered -> request received, seconds; -1 without a candidate
    repeats: str  # the exchange whose binding this one repeats (a retry), or ""
    rejects: str  # regeneration, branch: the exchange whose reply was implicitly rejected, or ""
    expired: int
    evicted: int
    light: bytes
    heavy: bytes
    earlier: list[Earlier]  # oldest first
    late: list[Late]
    rejected_light: bytes = b""
    rejected_heavy: bytes = b""
