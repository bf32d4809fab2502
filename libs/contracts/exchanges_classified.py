"""exchanges.classified: one line per exchange, what the matcher made of it (offline: the --exchanges file).

This is what says why healthy traffic gives no signal. Key: session_id. Producer: matcher. Consumers: monitor, CLI.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from libs.contracts.base import Record

TOPIC = "exchanges.classified"
VERSION = 1

ExchangeClass = Literal["main", "side", "compaction", "retry", "regeneration", "branch"]


class ExchangeClassified(Record, frozen=True, kw_only=True):
    """`turn_id` is the exchange whose reply this one answers, or null with a `reason` (snake_case)."""

    version: int = VERSION
    exchange_id: str
    scenario: str
    tenant: str
    exchange_class: ExchangeClass = msgspec.field(name="class")
    session_id: str | None
    turn_id: str | None
    rule: str | None
    confidence: float = 0.0
    reason: str  # "matched", or why there is no binding: "first_request", "side_call", "ambiguous", ...
    dialect: str  # chat_completions | messages | responses | unknown
    tagged: bool = False
    hinted: bool = False
    captured: bool = False
    at: float  # the exchange's received_at, unix seconds
    gap_seconds: float | None = None  # reply delivered -> answer received, for a binding
    expired_sessions: int = 0  # sessions whose TTL ran out since the last exchange, seen by this one
    evicted_sessions: int = 0  # sessions pushed out by the bound on open sessions
