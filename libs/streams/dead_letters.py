"""Records that cannot be handled: how they are set aside, and when too many of them stop the loop (as arroyo does)."""

from __future__ import annotations

import base64
from collections import deque

from libs.contracts import DeadLetter, encode
from libs.contracts.base import writable
from libs.contracts.dead_letters import TOPIC
from libs.streams.types import Output, StreamRecord

_MAX_ERROR_CHARS = 2000


def dead_letter(
    record: StreamRecord, *, service: str, reason: str, error: str, attempts: int, failed_at: float, whole: bool = True
) -> Output:
    """The record with the reason, keyed by its id so that a repeat lands beside the first.

    With `whole` false the bytes are left out (they do not fit into one record); the source offset still names them.
    """
    note = "" if whole else f" [value of {len(record.value)} bytes left out: read {record.id}]"
    letter = DeadLetter(
        dead_letter_id=record.id,
        service=service,
        source_topic=record.topic,
        source_partition=record.partition,
        source_offset=record.offset,
        reason=reason,
        error=writable(error[: _MAX_ERROR_CHARS - len(note)] + note),
        attempts=attempts,
        failed_at=failed_at,
        key=None if record.key is None else base64.b64encode(record.key).decode(),
        value=base64.b64encode(record.value).decode() if whole else "",
    )
    return Output(topic=TOPIC, key=record.id, value=encode(letter))


class DeadLetterLimit:
    """A fault in the service itself looks like a stream of faulty records; past the limit the loop must stop.

    Two limits: `consecutive` dead letters without one good record between, and more than `share` of the last `window`
    records (only once the window is full, so that a few early ones do not count as a flood).
    """

    def __init__(self, consecutive: int, share: float = 0.5, window: int = 1000) -> None:
        self._limit = consecutive
        self._share = share
        self._recent: deque[bool] = deque(maxlen=window)
        self._dead = 0
        self._run = 0

    def good(self) -> None:
        """A record was handled."""
        self._run = 0
        self._push(False)

    def bad(self) -> str | None:
        """A record is about to be set aside. Returns why the loop must stop instead, or None."""
        if self._run >= self._limit:
            return f"{self._run} records in a row were dead-lettered (limit {self._limit})"
        full = len(self._recent) == self._recent.maxlen
        if full and self._dead > self._share * len(self._recent):
            return f"{self._dead} of the last {len(self._recent)} records were dead-lettered (limit {self._share:.0%})"
        self._run += 1
        self._push(True)
        return None

    def _push(self, dead: bool) -> None:
        if len(self._recent) == self._recent.maxlen and self._recent[0]:
            self._dead -= 1
        self._recent.append(dead)
        self._dead += dead
