"""The one consumer loop that every service which may not lose a record runs on.

Rules, each from a measured loss or hang (docs/decisions/stream-loop.md):
- one gate around fetch and dispatch; a revoke takes it, drains, commits, forgets; the next assignment opens it again
- only offsets below the first record that is not done are committed
- bounded concurrency; when nothing is free for a while the partitions are paused and polling goes on
- records are done after their outputs are acknowledged and their state is written
- a loop that gets no records although the broker has some stops, so that a supervisor restarts it
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine
from typing import Any

from libs.errors import ClawbackError, RetryError, StopError
from libs.streams.backend import Consumer, Producer
from libs.streams.offsets import OffsetTracker
from libs.streams.types import Done, Handler, Held, Partition, Position, StreamRecord
from libs.streams.watchdog import Watchdog
from libs.streams.work import Abandoned, LoopOptions, Worker
from libs.telemetry import metrics
from libs.telemetry.logs import get_logger

StartPositions = Callable[[Collection[Partition]], Awaitable[Position]]

_FETCH_SECONDS = 0.2
_FULL_SECONDS = 1.0  # no free slot for this long: pause and poll


class StreamLoop:
    """Runs `handler` over what `consumer` delivers. `run` returns after `stop`, or raises the StopError that ended it.

    `start_positions` is asked on every assignment where to read from; partitions that it does not name start at the
    group's committed offset. A trainer answers from its checkpoint, the only place that knows what it has consumed.
    """

    def __init__(
        self,
        service: str,
        handler: Handler,
        consumer: Consumer,
        producer: Producer,
        options: LoopOptions | None = None,
        *,
        start_positions: StartPositions | None = None,
    ) -> None:
        self._service = service
        self._handler = handler
        self._consumer = consumer
        self._options = options or LoopOptions()
        self._start_positions = start_positions
        self._worker = Worker(service, handler, producer, self._options)
        self._log = get_logger(f"streams.{service}")
        self._gate = asyncio.Lock()
        self._commit_lock = asyncio.Lock()
        self._rebalancing = False
        self._trackers: dict[Partition, OffsetTracker] = {}
        self._committed: dict[Partition, int] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._in_flight = 0
        self._held: set[tuple[Partition, int]] = set()
        self._freed = asyncio.Event()
        self._stopping = asyncio.Event()
        self._fatal: StopError | None = None
        self._watchdog = Watchdog(
            service, consumer, self._trackers, self._options.stall_seconds, lambda: self._rebalancing
        )
        self._gauge = metrics.IN_FLIGHT.labels(service)
        self.assigned = asyncio.Event()

    # --- life ----------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Ask for a graceful end: finish what is in flight within drain_seconds, commit, leave the group."""
        self._stopping.set()

    def first_open(self, record: StreamRecord) -> int | None:
        """The first offset of the record's partition that is not done, the record's own apart."""
        tracker = self._trackers.get((record.topic, record.partition))
        return tracker.first_open(record.offset) if tracker else None

    async def run(self) -> None:
        """Until `stop`. Raises StopError."""
        start = asyncio.create_task(self._consumer.start(self))
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait((start, stopping), return_when=asyncio.FIRST_COMPLETED)
            if start.done():
                start.result()
                await self._run_started(stopping)
        finally:
            for task in (start, stopping):
                task.cancel()
            await asyncio.gather(start, stopping, return_exceptions=True)
            await self._consumer.stop()
        if self._fatal is not None:
            raise self._fatal

    async def _run_started(self, stopping: asyncio.Task[bool]) -> None:
        self._watchdog.alive()
        loops = [
            asyncio.create_task(self._guard(loop()), name=f"{self._service}.{loop.__name__}")
            for loop in (self._fetching, self._ticking, self._committing, self._watchdog.watch)
        ]
        await stopping
        for task in loops:
            task.cancel()
        await asyncio.gather(*loops, return_exceptions=True)
        await self._drain()
        await self._commit()

    async def _guard(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception as error:
            self._fail(error, "the loop failed", "loop")

    def _fail(self, error: Exception, what: str, reason: str) -> None:
        """End the service. A task that ended without a word would leave its records open for ever."""
        if not isinstance(error, ClawbackError):
            self._log.error(what, exc_info=error)
            error = StopError(f"{what}: {error!r}", reason=reason)
        if self._fatal is None:
            self._fatal = error if isinstance(error, StopError) else StopError(str(error), reason=error.reason)
            self._log.error("stop", reason=error.reason, error=str(error))
        self._stopping.set()

    # --- fetch and dispatch --------------------------------------------------------------------------------------

    async def _fetching(self) -> None:
        attempt = 0
        while True:
            free = self._options.max_in_flight - self._in_flight
            if free <= 0 or len(self._held) >= self._options.max_held:
                await self._wait_for_room()
                continue
            try:
                async with self._gate:
                    for record in await self._consumer.fetch(free, _FETCH_SECONDS):
                        self._dispatch(record)
                attempt = 0
            except RetryError as error:
                self._log.warning("fetch failed", error=str(error))
                await asyncio.sleep(self._options.backoff.delay(attempt))
                attempt += 1

    async def _wait_for_room(self) -> None:
        self._freed.clear()
        try:
            async with asyncio.timeout(_FULL_SECONDS):
                await self._freed.wait()
        except TimeoutError:
            async with self._gate:
                self._consumer.pause()
                try:
                    # Paused partitions deliver nothing; the call alone keeps this member in its group.
                    for record in await self._consumer.fetch(1, 0.0):
                        self._dispatch(record)
                except RetryError as error:
                    self._log.warning("fetch failed", error=str(error))
                finally:
                    self._consumer.resume()
        self._watchdog.alive()

    def _dispatch(self, record: StreamRecord) -> None:
        self._watchdog.alive()
        partition = (record.topic, record.partition)
        tracker = self._trackers.setdefault(partition, OffsetTracker())
        if not tracker.add(record.offset):
            return
        self._in_flight += 1
        self._gauge.set(self._in_flight + len(self._held))
        self._spawn(self._work(record, tracker))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _work(self, record: StreamRecord, tracker: OffsetTracker) -> None:
        try:
            result = await self._worker.handle(record)
            if isinstance(result, Held):
                if tracker.is_open(record.offset):
                    self._held.add(((record.topic, record.partition), record.offset))
            else:
                self._complete(result)
                tracker.done(record.offset)
        except Abandoned:
            self._log.info("left for the next owner", record=record.id)
        except Exception as error:
            self._fail(error, "a record failed", "loop")
        finally:
            self._in_flight -= 1
            self._gauge.set(self._in_flight + len(self._held))
            self._freed.set()

    def _complete(self, done: Done) -> None:
        for record in done.completes:
            partition = (record.topic, record.partition)
            self._held.discard((partition, record.offset))
            if partition in self._trackers:
                self._trackers[partition].done(record.offset)

    # --- tick ----------------------------------------------------------------------------------------------------

    async def _ticking(self) -> None:
        while True:
            await asyncio.sleep(self._options.tick_seconds)
            async with self._gate:  # not between a revoke's drain and its forgetting
                try:
                    async with asyncio.timeout(self._options.handle_timeout_seconds):
                        done = await self._handler.tick()
                except RetryError as error:
                    self._log.warning("tick failed", error=str(error))
                    continue
                dones = () if done is None else (done,) if isinstance(done, Done) else tuple(done)
                tasks = [self._spawn(self._tick_done(each)) for each in dones]
            if tasks:  # not gathered: a drain that cancels one must not end the ticks, nor a stop these
                await asyncio.wait(tasks)

    async def _tick_done(self, done: Done) -> None:
        try:
            await self._worker.complete(done)
            self._complete(done)
        except Abandoned:
            self._log.info("left for the next owner", records=len(done.completes))
        except Exception as error:
            self._fail(error, "a tick failed", "loop")
        finally:
            self._freed.set()

    # --- commit --------------------------------------------------------------------------------------------------

    async def _committing(self) -> None:
        while True:
            await asyncio.sleep(self._options.commit_interval_seconds)
            if not self._rebalancing:
                await self._commit()

    async def _commit(self) -> None:
        async with self._commit_lock:  # two at once could arrive in the wrong order
            assigned = self._consumer.assignment()
            positions = {
                partition: tracker.position
                for partition, tracker in self._trackers.items()
                if partition in assigned
                and tracker.position is not None
                and tracker.position != self._committed.get(partition)
            }
            if not positions:
                return
            try:
                if await self._consumer.commit(positions):
                    self._committed.update(positions)
            except RetryError as error:
                self._log.warning("commit failed", error=str(error))  # the next one carries these positions as well

    # --- rebalance -----------------------------------------------------------------------------------------------

    async def on_revoked(self, partitions: Collection[Partition]) -> None:
        """Take the gate, finish what is in flight, commit, forget. The gate stays shut until `on_assigned`."""
        if not self._rebalancing:
            await self._gate.acquire()
            self._rebalancing = True
        self.assigned.clear()
        try:
            await self._drain()
            await self._commit()
            for partition in partitions:
                self._trackers.pop(partition, None)
                self._committed.pop(partition, None)
                metrics.LAG.labels(self._service, partition[0], str(partition[1])).set(0)
            self._held = {held for held in self._held if held[0] in self._trackers}
            self._freed.set()
            await self._handler.revoked(partitions)
        except Exception as error:
            self._fail(error, "revoke failed", "revoke")

    async def on_assigned(self, partitions: Collection[Partition]) -> None:
        """Seek to the start positions and open the gate."""
        try:
            if self._start_positions is not None and partitions:
                position = await self._start_positions(partitions)
                for partition, offset in position.offsets.items():
                    if partition in partitions:
                        self._consumer.seek(partition, offset)
        except Exception as error:
            self._fail(error, "no start position", "start_positions")
        self._log.info("assigned", partitions=sorted(f"{t}-{p}" for t, p in partitions))
        self._watchdog.alive()
        if self._fatal is None:
            self.assigned.set()
            if self._rebalancing:
                self._rebalancing = False
                self._gate.release()

    async def _drain(self) -> None:
        self._worker.draining.set()
        try:
            tasks = set(self._tasks)
            if tasks:
                _, late = await asyncio.wait(tasks, timeout=self._options.drain_seconds)
                for task in late:
                    task.cancel()
                await asyncio.gather(*late, return_exceptions=True)
                if late:
                    self._log.warning("not finished in time, left for the next owner", records=len(late))
        finally:
            self._worker.draining.clear()
