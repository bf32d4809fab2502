"""tombstones: whose data is to be forgotten. Kafka's own retention removes the records; this says what not to use.

Key: the value. Producer: `clawback forget`. Consumers: monitor (drops what it holds and what comes of it later), and
every stage (leaves out what it reads of it: libs/streams/forgotten.py).
"""

from __future__ import annotations

from typing import Literal

import msgspec

from libs.contracts.base import Record

TOPIC = "tombstones"
VERSION = 1


class Tombstone(Record, frozen=True, kw_only=True):
    """Everything of this session or tenant up to `at` (unix seconds) is forgotten; later traffic counts again."""

    version: int = VERSION
    kind: Literal["session", "tenant"]
    value: str  # session_id or tenant, as in the records
    tenant: str = ""  # of a session: session ids are unique within a tenant only; "" stands for every tenant
    at: float
    redis_keys: int = 0  # how many keys were removed from Redis
    exchange_ids: list[str] = msgspec.field(default_factory=list)  # of a session: raw traffic does not name its session
