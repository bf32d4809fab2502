"""traffic.raw in, turns.matched and exchanges.classified out."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from functools import lru_cache

from libs.contracts import ExchangeClassified, TrafficRaw, TurnMatched, encode
from libs.contracts import exchanges_classified as classified_topic
from libs.contracts import turns_matched as matched_topic
from libs.matching.matcher import Matcher, Outcome, order_key
from libs.matching.reading import read_record
from libs.streams.types import Done, Output, Partition, StreamRecord
from libs.telemetry import metrics


class MatchHandler:
    """Matches records; those of one conversation one after another, others at the same time."""

    def __init__(self, matcher: Matcher, ready: Callable[[], Awaitable[None]] | None = None) -> None:
        self._matcher = matcher
        self._ready = ready
        self._locks: dict[bytes, tuple[asyncio.Lock, int]] = {}

    async def handle(self, record: StreamRecord) -> Done:
        """Raises ContractError (dead letter) for what is no traffic.raw record, RetryError while Redis is away."""
        exchange = read_record(record.value)
        outcome = await self._in_order(exchange, record.key)
        outputs = [Output(matched_topic.TOPIC, b.session_id, encode(b)) for b in outcome.bindings if not b.repeat_of]
        outputs += [Output(classified_topic.TOPIC, c.session_id, encode(c)) for c in outcome.classified]
        for binding in outcome.bindings:
            _count_binding(binding)
        for one in outcome.classified:
            _count_exchange(one)
        return Done(outputs=tuple(outputs))

    async def _in_order(self, exchange: TrafficRaw, produced_under: bytes | None) -> Outcome:
        key = produced_under or order_key(exchange).encode()
        lock, waiting = self._locks.get(key) or (asyncio.Lock(), 0)
        self._locks[key] = (lock, waiting + 1)
        try:
            async with lock:
                return await self._matcher.match(exchange)
        finally:
            lock, waiting = self._locks[key]
            if waiting == 1:
                del self._locks[key]
            else:
                self._locks[key] = (lock, waiting - 1)

    async def ready(self) -> None:
        """Raise while the state cannot be reached."""
        if self._ready is not None:
            await self._ready()

    async def tick(self) -> None:
        """Nothing happens between records."""

    async def revoked(self, partitions: Collection[Partition]) -> None:
        """Nothing is held back."""


# Finding the child of a label set costs more than counting in it.
_matched = lru_cache(maxsize=4096)(metrics.MATCHED_TURNS.labels)
_exchanges = lru_cache(maxsize=4096)(metrics.EXCHANGES.labels)
_gaps = lru_cache(maxsize=4096)(metrics.ANSWER_GAP_SECONDS.labels)


def _count_binding(binding: TurnMatched) -> None:
    _matched(binding.scenario, binding.rule, binding.evidence).inc()


def _count_exchange(one: ExchangeClassified) -> None:
    _exchanges(one.scenario, one.exchange_class, one.reason).inc()
    if one.gap_seconds is not None:
        _gaps(one.scenario).observe(max(one.gap_seconds, 0.0))
    if one.expired_sessions:
        metrics.SESSIONS_CLOSED.labels(one.scenario, "expired").inc(one.expired_sessions)
    if one.evicted_sessions:
        metrics.SESSIONS_CLOSED.labels(one.scenario, "evicted").inc(one.evicted_sessions)
