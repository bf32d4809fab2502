"""dead.letters: records that a service could not handle, whole, with the reason. Producer: every service's loop."""

from __future__ import annotations

from libs.contracts.base import Record

TOPIC = "dead.letters"
VERSION = 1


class DeadLetter(Record, frozen=True, kw_only=True):
    version: int = VERSION
    dead_letter_id: str  # "<topic>-<partition>-<offset>", so a repeat is recognised
    service: str
    source_topic: str
    source_partition: int
    source_offset: int
    reason: str  # snake_case label
    error: str  # the message, cut to 2000 characters
    attempts: int
    failed_at: float
    key: str | None  # base64
    value: str  # base64 of the record's bytes
