"""Training batches in, release events out. Batches that wait are taken in turn by scenario; one step at a time."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Collection

import msgspec

from libs.contracts import BASE_RELEASE, PolicyRelease, TrainingBatch, decode, encode
from libs.errors import ClawbackError, RetryError, StopError
from libs.streams.dead_letters import dead_letter
from libs.streams.forgotten import OUTCOME, Forgotten, subject_of
from libs.streams.types import Done, FirstOpen, Output, Partition, Position, StreamRecord
from libs.telemetry import metrics
from libs.telemetry.logs import get_logger
from services.trainer.announce import announcements, overtaken, refusal
from services.trainer.learner import Learner
from services.trainer.memory import trim
from services.trainer.store import Store, after_batch, after_command, after_publish, with_own
from services.trainer.turns import FairTurns

BATCHES, RELEASES = "training.batches", "policy.releases"
_log = get_logger("trainer")
_COMMANDS = ("rolled_back", "promoted")
_PATIENCE_SECONDS = 5.0


class TrainerHandler:
    """One scenario's batches are handled in order; between scenarios the one that waited longest is next."""

    def __init__(self, learner: Learner, store: Store) -> None:
        self._learner, self._store = learner, store
        self._turns = FairTurns()
        self._first_open: FirstOpen = lambda record: None
        self._step: asyncio.Future[PolicyRelease] | None = None
        self._published = asyncio.Event()
        self._to_announce: list[PolicyRelease] = list(store.pending())
        self._forgotten = Forgotten()

    async def handle(self, record: StreamRecord) -> Done:
        if record.topic.startswith(RELEASES):
            return await self._command(record)
        batch = decode(record.value, TrainingBatch)
        async with self._turns.turn(batch.scenario):
            return await self._batch(record, batch)

    def position_by(self, first_open: FirstOpen) -> None:
        """Records that wait for their claim, or for the tombstones, have not come here yet: the loop knows of them."""
        self._first_open = first_open

    async def _batch(self, record: StreamRecord, batch: TrainingBatch) -> Done:
        await self._former_published(batch)
        state = self._store.get(batch.scenario)
        if batch.batch_id in state.batches:
            again = state.pending if state.pending and state.pending.batch_id == batch.batch_id else None
            return self._done(record, batch, again)
        position = self._position(record, passed=False)
        started = time.monotonic()
        kept, left_out = self._without_forgotten(batch)
        event = await self._stepped(kept, position)
        event = msgspec.structs.replace(event, dropped=event.dropped | left_out)
        metrics.TRAINER_STEP_SECONDS.observe(time.monotonic() - started)
        self._store.put(after_batch(self._store.get(batch.scenario), event, position))
        _count(event, self._learner.options.drift_max)
        return self._done(record, batch, event)

    async def _former_published(self, batch: TrainingBatch) -> None:
        """A scenario's events go out one after another: readers go by their order, and one is kept for a restart."""
        former = None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE_SECONDS):
                while (former := self._store.get(batch.scenario).pending) and former.batch_id != batch.batch_id:
                    self._published.clear()
                    await self._published.wait()
                return
        if former is not None and former not in self._to_announce:
            self._to_announce.append(former)  # its own record may have been set aside
        raise RetryError("the event of the batch before is not out yet", reason="unpublished")

    async def _stepped(self, batch: TrainingBatch, position: dict[str, int]) -> PolicyRelease:
        """One step at a time: a drain or a time limit leaves one, but its thread goes on with the model."""
        if self._step is not None:
            await asyncio.wait((self._step,))
            self._learner.forget()
        self._step = asyncio.ensure_future(asyncio.to_thread(self._process, batch, position))
        self._step.add_done_callback(_looked_at)
        event = await asyncio.shield(self._step)
        self._step = None
        return event

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
            self._published.set()

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
        own = record.offset + passed
        first = self._first_open(record)
        return {f"{record.topic}-{record.partition}": own if first is None else min(first, own)}

    async def _command(self, record: StreamRecord) -> Done:
        """A rollback or promotion from the command line. The trainer's own events come back here and change nothing."""
        event = decode(record.value, PolicyRelease)
        if event.event not in _COMMANDS:
            return Done()
        async with self._turns.turn(event.scenario):
            state = self._store.get(event.scenario)
            after = after_command(state, event)
            if event.serving != BASE_RELEASE and event.serving not in after.chain.releases:
                return Done() if after is state else self._refused(event, refusal(after.chain, event))
            answer = overtaken(after.chain, event)
            if after is not state:
                self._store.put(with_own(after, answer) if answer else after)
                metrics.TRAINER_COMMANDS.labels(event.event).inc()
        return Done(outputs=(_output(answer),)) if answer else Done()

    def _refused(self, command: PolicyRelease, answer: PolicyRelease) -> Done:
        """A release whose weights are gone cannot serve: say so in the log, where every reader of it looks."""

        async def finalize() -> None:
            self._store.put(with_own(after_command(self._store.get(command.scenario), command), answer))
            metrics.TRAINER_COMMANDS.labels("refused").inc()

        return Done(outputs=(_output(answer),), finalize=finalize)

    async def tick(self) -> Done | None:
        """First, publish what an earlier run decided and perhaps did not publish."""
        events = list(self._to_announce)
        if not events:
            return None

        async def finalize() -> None:
            for event in events:
                state = self._store.get(event.scenario)
                if event.batch_id and (after := after_publish(state, event.batch_id, {})).pending != state.pending:
                    self._store.put(after)
            self._to_announce = [event for event in self._to_announce if event not in events]
            self._published.set()

        return Done(outputs=tuple(map(_output, events)), finalize=finalize)

    def on_log(self, batch_ids: Collection[str]) -> None:
        """Take note of which batches the present log of releases names.

        A log that names none of the batches done here is a new one (a broker without storage was restarted): its
        offsets are not the ones in the checkpoints, and its readers have to be told what serves and what is held.
        """
        states = [self._store.get(s) for s in self._store.scenarios()]
        done = [b for s in states for b in s.batches if s.pending is None or b != s.pending.batch_id]
        if not done or not set(done).isdisjoint(batch_ids):
            return
        told: list[PolicyRelease] = []
        for state in states:
            events = announcements(state.chain) if state.pending is None else []
            own = [event for event in events if event.event in _COMMANDS]
            self._store.put(with_own(msgspec.structs.replace(state, positions={}), *own))
            told += events
        self._to_announce = [*told, *self._to_announce]

    async def revoked(self, partitions: Collection[Partition]) -> None:
        """Nothing is held back."""

    async def start_positions(self, partitions: Collection[Partition]) -> Position:
        """The checkpoints' positions."""
        known = self._store.positions()
        named = {p: known[f"{p[0]}-{p[1]}"] for p in partitions if f"{p[0]}-{p[1]}" in known}
        return Position(offsets=named)


def _looked_at(step: asyncio.Future[PolicyRelease]) -> None:
    """The outcome of a step that was left is not wanted, its error is no surprise."""
    if not step.cancelled():
        step.exception()


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
