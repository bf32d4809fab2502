"""traffic.raw: one exchange between a client and the model, as it passed the gateway.

The only record with a fixed outside form: people replay recorded logs through it (JSONL, one object a line).
Key: libs.dialects.partition_key(record) (locality only). Producer: gateway. Consumers: matcher, monitor.
"""

from __future__ import annotations

from typing import Any, Literal

from libs.contracts.base import Capture, Record

TOPIC = "traffic.raw"
VERSION = 1

Outcome = Literal["completed", "client_gone", "upstream_error"]


class TrafficRaw(Record, frozen=True, kw_only=True):
    """Times are unix seconds. `request` and `response` are the provider's JSON, the response assembled if streamed."""

    version: int = VERSION
    exchange_id: str  # time-sortable
    scenario: str
    tenant: str  # stable hash of the credential
    received_at: float
    completed_at: float
    path: str  # /v1/chat/completions, /v1/messages, /v1/responses
    headers: dict[str, str]  # allow-listed names in lower case
    request: Any
    response: Any
    outcome: Outcome
    release_id: str
    capture: Capture | None = None
