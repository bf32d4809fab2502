"""turns.judged in, training.batches out."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Sequence

from libs.contracts import TrainingBatch, TurnJudged, decode, encode
from libs.contracts.training_batches import TOPIC, sample_of
from libs.streams.forgotten import OUTCOME, Forgotten, subject_of
from libs.streams.types import Done, Held, Output, Partition, StreamRecord
from libs.telemetry import metrics
from libs.telemetry.logs import get_logger
from services.batcher.config import BatcherSettings
from services.batcher.groups import Closed, Groups, Waiting
from services.batcher.releases import Serving
from services.batcher.seen import Seen

_log = get_logger("batcher")
# Turns wait for their batch without being committed; close groups well before the loop has to pause for them.
_PRESSURE = 0.8


def batch_id_of(feedback_ids: Sequence[str]) -> str:
    """The same feedback in the same order gives the same id: 32 hex digits of SHA-256."""
    return hashlib.sha256("\n".join(feedback_ids).encode()).hexdigest()[:32]


class BatchHandler:
    """Groups judged turns by scenario. Every turn that no batch takes is counted by reason and logged."""

    def __init__(
        self,
        settings: BatcherSettings,
        seen: Seen,
        serving: Serving,
        *,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
        ready: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._settings = settings
        self._seen = seen
        self._serving = serving
        self._clock = clock
        self._now = now
        self._ready = ready
        self._forgotten: Forgotten | None = None
        self._groups = Groups(settings.batcher_batch_size, settings.batcher_max_bytes, settings.batcher_max_age_seconds)
        self._flying: dict[tuple[str, str], StreamRecord] = {}  # closed, not remembered in Redis yet
        self._later: list[Done] = []  # closed by a record that itself goes on waiting
        self._order: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def handle(self, record: StreamRecord) -> Done | Held:
        """Raises ContractError, RetryError (Redis)."""
        turn = decode(record.value, TurnJudged)
        reason = self._unfit(turn)
        if reason is None:
            # Arrival order within a scenario survives the look-up, so that a redelivery makes the same batches.
            async with self._order[turn.scenario]:
                reason = await self._repeated(turn, record)
                if reason is None:
                    return self._take(turn, record)
        return self._drop(turn.scenario, turn.feedback_id, reason)

    async def tick(self) -> Sequence[Done]:
        """Close what has waited too long; let go of what has become stale."""
        for scenario, waiting in self._groups.prune(lambda s, w: self._outdated(s, w) is not None):
            self._drop(scenario, waiting.sample.feedback_id, self._outdated(scenario, waiting) or "")
            self._later.append(Done(completes=(waiting.record,)))
            self._show(scenario)
        max_held = int(self._settings.stream_max_held * _PRESSURE)
        self._later += [self._batch(closed, None) for closed in self._groups.due(self._clock(), max_held)]
        done, self._later = self._later, []
        return done

    async def revoked(self, partitions: Collection[Partition]) -> None:
        """Their next owner reads what waits here."""
        self._groups.forget(partitions)
        self._later.clear()
        self._flying.clear()

    def leave_out(self, forgotten: Forgotten) -> None:
        """Turns that wait when their person is forgotten go to no batch."""
        self._forgotten = forgotten

    async def ready(self) -> None:
        """Raises RetryError while Redis is away or the releases have not been read."""
        if self._ready is not None:
            await self._ready()

    def _unfit(self, turn: TurnJudged) -> str | None:
        if turn.disposition != "train":
            return turn.reason or "dropped"
        if turn.capture is None:
            return "not_captured"
        return "stale" if self._stale(turn.scenario, turn.release_id) else None

    def _stale(self, scenario: str, release_id: str) -> bool:
        age = self._serving.staleness(scenario, release_id)
        return age is not None and age > self._settings.batcher_max_staleness

    def _outdated(self, scenario: str, waiting: Waiting) -> str | None:
        if self._forgotten is not None and self._forgotten.covers(subject_of(waiting.sample)):
            return OUTCOME
        return "stale" if self._stale(scenario, waiting.sample.release_id) else None

    async def _repeated(self, turn: TurnJudged, record: StreamRecord) -> str | None:
        there = self._groups.holds(turn.scenario, turn.feedback_id)
        there = there or self._flying.get((turn.scenario, turn.feedback_id))
        if there is not None:
            return "repeated"
        return "repeated" if await self._seen.batch_of(turn.scenario, turn.feedback_id) else None

    def _take(self, turn: TurnJudged, record: StreamRecord) -> Done | Held:
        waiting = Waiting(record, sample_of(turn), self._clock())
        own: Done | None = None
        for closed in self._groups.add(turn.scenario, waiting):
            if closed.turns[-1].record is record:
                own = self._batch(closed, record)
            else:
                self._later.append(self._batch(closed, None))
        self._show(turn.scenario)
        return own or Held()

    def _batch(self, closed: Closed, own: StreamRecord | None) -> Done:
        ids = [waiting.sample.feedback_id for waiting in closed.turns]
        batch = TrainingBatch(
            batch_id=batch_id_of(ids),
            scenario=closed.scenario,
            samples=[waiting.sample for waiting in closed.turns],
            created_at=self._now(),
        )
        keys = [(closed.scenario, feedback_id) for feedback_id in ids]
        self._flying |= {key: waiting.record for key, waiting in zip(keys, closed.turns, strict=True)}

        def landed() -> None:
            for key in keys:
                self._flying.pop(key, None)

        async def remember() -> None:
            await self._seen.mark(closed.scenario, ids, batch.batch_id)
            landed()
            metrics.BATCHES.labels(closed.scenario, closed.cause).inc()
            metrics.BATCHED_TURNS.labels(closed.scenario).inc(len(ids))
            metrics.BATCH_AGE_SECONDS.labels(closed.scenario).observe(self._clock() - closed.turns[0].since)
            _log.info("batch", scenario=closed.scenario, batch=batch.batch_id, turns=len(ids), cause=closed.cause)

        self._show(closed.scenario)
        return Done(
            outputs=(Output(TOPIC, closed.scenario, encode(batch)),),
            finalize=remember,
            completes=tuple(waiting.record for waiting in closed.turns if waiting.record is not own),
            refused=landed,
        )

    def _drop(self, scenario: str, feedback_id: str, reason: str) -> Done:
        metrics.BATCHER_DROPPED.labels(scenario, reason).inc()
        _log.info("dropped", scenario=scenario, feedback=feedback_id, reason=reason)
        return Done()

    def _show(self, scenario: str) -> None:
        metrics.BATCHER_HELD.labels(scenario).set(self._groups.waiting(scenario))
