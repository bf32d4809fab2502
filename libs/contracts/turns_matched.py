"""turns.matched: a served reply (the turn) bound to the next state that answered it.

Key: session_id. Producer: matcher. Consumers: judge, monitor.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from libs.contracts.base import Capture, Message, Record

TOPIC = "turns.matched"
VERSION = 1

# next_state: the answer holds words or tool results. regeneration, branch: the client asked again instead,
# an implicit rejection that carries no words.
Evidence = Literal["next_state", "regeneration", "branch"]


class EarlierTurn(msgspec.Struct, frozen=True, kw_only=True):
    """One earlier turn of the session, oldest first. It carries all a judged turn of its own needs.

    `capture` is null when it was not captured or would have exceeded the record's size budget.
    """

    number: int  # 1 is the oldest shown
    turn_id: str
    path: str
    prompt: list[Message]  # what the turn answered: its newest user or tool messages
    reply: str
    request: Any
    response: Any
    release_id: str
    received_at: float = 0.0  # unix seconds; 0 where an older producer did not say
    completed_at: float = 0.0
    capture: Capture | None = None


class TurnMatched(Record, frozen=True, kw_only=True):
    version: int = VERSION
    turn_id: str  # the exchange whose reply is answered
    answered_by: str  # the exchange that answers it
    scenario: str
    tenant: str
    session_id: str
    rule: str  # tag | hint | prefix | anchor | bridge
    confidence: float  # 0..1
    evidence: Evidence = "next_state"
    path: str
    prompt: list[Message] = msgspec.field(default_factory=list)  # as in EarlierTurn: what the reply answered
    reply: str  # the turn's reply as text (tool calls rendered as name(arguments))
    next_state: list[Message]
    request: Any
    response: Any
    release_id: str
    received_at: float  # of the turn's request
    completed_at: float  # of the turn's reply
    answered_at: float  # of the answering request
    repeat_of: str | None = None  # offline only: the answer is a retry of this one, whose binding counts; never judged
    earlier: list[EarlierTurn]
    capture: Capture | None = None
