"""Training batches in, release events out. Batches that wait are taken in turn by scenario; one step at a time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection

import msgspec

from libs.contracts import PolicyRelease, TrainingBatch, decode, encode
from libs.errors import ClawbackError, DeadLetterError, RetryError, StopError
from libs.streams.dead_letters import dead_letter
from libs.streams.forgotten import OUTCOME, Forgotten, subject_of
from libs.streams.types import Done, Output, Partition, Position, StreamRecord
from libs.telemetry import metrics
from libs.telemetry.logs import get_logger
from services.trainer.announce import announcements, refusal
from services.trainer.learner import Learner
from services.trainer.memory import trim
from services.trainer.store import Store, after_batch, after_command, after_publish
from services.trainer.turns import FairTurns

BATCHES, RELEASES = "training.batches", "policy.releases"
_log = get_logger("trainer")
_COMMANDS = ("rolled_back", "promoted")


class TrainerHandler:
    """One scenario's batches are handled in order; between scenarios the one that waited longest is next."""

    def __init__(self, learner: Learner, store: Store) -> None:
        self._learner, self._store = learner, store
        self._turns = FairTurns()
        self._open: dict[Partition, set[int]] = {}
        self._to_announce: list[PolicyRelease] = list(store.pending())
        self._forgotten = Forgotten()

    async def handle(self, record: StreamRecord) -> Done:
        if record.topic.startswith(RELEASES):
            return await self._command(record)
        partition = (record.topic, record.partition)
        self._open.setdefault(partition, set()).add(record.offset)
        try:
            batch = decode(record.value, TrainingBatch)
            async with self._turns.turn(batch.scenario):
                return await self._batch(record, batch)
        except DeadLetterError:
            self._open[partition].discard(record.offset)
            raise

    async def _batch(self, record: StreamRecord, batch: TrainingBatch) -> Done:
        state = self._store.get(batch.scenario)
        if batch.batch_id in state.batches:
            again = state.pending if state.pending and state.pending.batch_id == batch.batch_id else None
            return self._done(record, batch, again)
        position = self._position(record, passed=False)
        started = time.monotonic()
        kept, left_out = self._without_forgotten(batch)
        try:
            event = await asyncio.to_thread(self._process, kept, position)
        except BaseException:
            self._learner.forget()
            raise
        event = msgspec.structs.replace(event, dropped=event.dropped | left_out)
        metrics.TRAINER_STEP_SECONDS.observe(time.monotonic() - started)
        self._store.put(after_batch(self._store.get(batch.scenario), event, position))
        _count(event, self._learner.options.drift_max)
        return self._done(record, batch, event)

    def leave_out(self, forgotten: Forgotten) -> None:
        """Samples of people who were forgotten after their batch was made reach no step."""
        self._forgotten = forgotten

    def _without_forgotten(self, batch: TrainingBatch) -> tuple[TrainingBatch, dict[str, str]]:
        covers = self._forgotten.covers
        left_out = {s.feedback_id: OUTCOME for s in batch.samples if covers(subject_of(s))}
        kept = [s for s in batch.samples if s.feedback_id not in left_out]
        return (msgspec.structs.replace(batch, samples=kept) if left_out else batch), left_out

    def _process(self, batch: TrainingBatch, position: dict[str, int]) -> PolicyRelease:
        """The batch's event, also when the step breaks: a batch never ends without one."""
        try:
            return self._learner.process(batch, position)
        except (RetryError, StopError):
            raise  # the cause lies outside the batch
        except OSError as error:
            self._learner.forget()
            message = f"cannot write the checkpoint of batch {batch.batch_id}: {error}; free or repair the disk"
            raise RetryError(message, reason="disk") from error
        except Exception as error:
            self._learner.forget()
            reason = error.reason if isinstance(error, ClawbackError) else "fault"
            _log.exception("the batch changed nothing", batch=batch.batch_id, scenario=batch.scenario)
            return self._learner.failed(batch, f"{reason}: {error}"[:500])
        finally:
            trim()

    def _done(self, record: StreamRecord, batch: TrainingBatch, event: PolicyRelease | None) -> Done:
        """`event` None: the batch's event is out already, the record came again."""

        async def finalize() -> None:
            position = self._position(record, passed=True)
            state = after_publish(self._store.get(batch.scenario), batch.batch_id, position)
            self._store.put_pruned(state, self._learner.options.keep_releases)

        if event is None:
            metrics.TRAINER_BATCHES.labels("repeated").inc()
            return Done(finalize=finalize)
        outputs = [_output(event)]
        if event.event == "failed":
            outputs.append(
                dead_letter(
                    record,
                    service="trainer",
                    reason=event.reason.partition(":")[0],
                    error=f"batch {batch.batch_id} changed nothing: {event.reason}",
                    attempts=1,
                    failed_at=event.created_at,
                )
            )
        return Done(outputs=tuple(outputs), finalize=finalize)

    def _position(self, record: StreamRecord, *, passed: bool) -> dict[str, int]:
        """Where a restart must read from: the first record here that is not done, itself included unless `passed`."""
        waiting = self._open.setdefault((record.topic, record.partition), set())
        if passed:
            waiting.discard(record.offset)
        ahead = min(waiting, default=record.offset + 1)
        return {f"{record.topic}-{record.partition}": min(ahead, record.offset + 1)}

    async def _command(self, record: StreamRecord) -> Done:
        """A rollback or promotion from the command line. The trainer's own events come back here and change nothing."""
        event = decode(record.value, PolicyRelease)
        if event.event not in _COMMANDS:
            return Done()
        async with self._turns.turn(event.scenario):
            state = self._store.get(event.scenario)
            after = after_command(state, event)
            if after is state:
                return Done()
            self._store.put(after)
            refused = after.chain.serving != event.serving
            metrics.TRAINER_COMMANDS.labels("refused" if refused else event.event).inc()
        # A release whose weights are gone cannot serve: say so in the log, where every reader of it looks.
        return Done(outputs=(_output(refusal(after.chain, event)),)) if refused else Done()

    async def tick(self) -> Done | None:
        """First, publish what an earlier run decided and perhaps did not publish."""
        if not self._to_announce:
            return None
        events, self._to_announce = self._to_announce, []
        return Done(outputs=tuple(map(_output, events)))

    def on_log(self, batch_ids: Collection[str]) -> None:
        """Take note of which batches the present log of releases names.

        A log that names none of the batches done here is a new one (a broker without storage was restarted): its
        offsets are not the ones in the checkpoints, and its readers have to be told what serves and what is held.
        """
        states = [self._store.get(s) for s in self._store.scenarios()]
        done = [b for s in states for b in s.batches if s.pending is None or b != s.pending.batch_id]
        if not done or not set(done).isdisjoint(batch_ids):
            return
        for state in states:
            self._store.put(msgspec.structs.replace(state, positions={}))
        settled = [s.chain for s in states if s.pending is None]
        self._to_announce = [*(event for chain in settled for event in announcements(chain)), *self._to_announce]

    async def revoked(self, partitions: Collection[Partition]) -> None:
        for partition in partitions:
            self._open.pop(partition, None)

    async def start_positions(self, partitions: Collection[Partition]) -> Position:
        """The checkpoints' positions."""
        known = self._store.positions()
        named = {p: known[f"{p[0]}-{p[1]}"] for p in partitions if f"{p[0]}-{p[1]}" in known}
        return Position(offsets=named)


def _output(event: PolicyRelease) -> Output:
    return Output(topic=RELEASES, key=event.scenario, value=encode(event))


def _count(event: PolicyRelease, drift_max: float) -> None:
    metrics.TRAINER_BATCHES.labels(event.event).inc()
    metrics.TRAINER_SAMPLES.labels("trained").inc(len(event.trained))
    for reason in event.dropped.values():
        metrics.TRAINER_SAMPLES.labels(reason).inc()
    if event.reason and event.event in ("skipped", "failed", "held"):
        metrics.TRAINER_NOT_RELEASED.labels(event.event, event.reason.partition(":")[0]).inc()
    for name, value in event.metrics.items():
        metrics.TRAINER_STEP_METRIC.labels(event.scenario, name).set(value)
    if event.metrics.get("drift_mean", 0.0) > drift_max:
        metrics.TRAINER_DRIFT_ALARMS.inc()
