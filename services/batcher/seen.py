"""Which feedback already went into a batch: written after the batch was produced, so a crash repeats, never loses.

A repeat that slips through (a crash between the two, Redis restarted without its data) is dropped by the trainer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from libs.streams.sessions import Script, ScriptStore

_MARK = Script("for i, key in ipairs(KEYS) do redis.call('SET', key, ARGV[1], 'EX', ARGV[2]) end return #KEYS")


class Seen(Protocol):
    """Remembers feedback ids per scenario."""

    async def batch_of(self, scenario: str, feedback_id: str) -> str | None:
        """The batch that took this feedback, or None. Raises RetryError."""
        ...

    async def mark(self, scenario: str, feedback_ids: Sequence[str], batch_id: str) -> None:
        """Remember that this batch took them. Raises RetryError."""
        ...


class RedisSeen:
    """One key a feedback id, all of a scenario in one hash slot, each with a TTL."""

    def __init__(self, store: ScriptStore, remember_seconds: int) -> None:
        self._store = store
        self._remember_seconds = remember_seconds

    async def batch_of(self, scenario: str, feedback_id: str) -> str | None:
        async with self._store.errors():
            found = await self._store.redis.get(_key(scenario, feedback_id))
        return found.decode() if isinstance(found, bytes) else found

    async def mark(self, scenario: str, feedback_ids: Sequence[str], batch_id: str) -> None:
        keys = [_key(scenario, feedback_id) for feedback_id in feedback_ids]
        await self._store.run(_MARK, keys, [batch_id, self._remember_seconds])


class MemorySeen:
    """For tests and offline runs."""

    def __init__(self) -> None:
        self.batches: dict[tuple[str, str], str] = {}

    async def batch_of(self, scenario: str, feedback_id: str) -> str | None:
        return self.batches.get((scenario, feedback_id))

    async def mark(self, scenario: str, feedback_ids: Sequence[str], batch_id: str) -> None:
        self.batches |= {(scenario, feedback_id): batch_id for feedback_id in feedback_ids}


def _key(scenario: str, feedback_id: str) -> str:
    return f"clawback:batched:{{{scenario}}}:{feedback_id}"
