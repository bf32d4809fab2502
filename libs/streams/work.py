"""What the loop does with one record: tries, backoff, produce, finalize, dead letter. No offsets in here."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from libs.contracts import claims
from libs.errors import ClawbackError, DeadLetterError, RetryError, StopError
from libs.streams.backend import Producer
from libs.streams.config import ServiceSettings
from libs.streams.dead_letters import DeadLetterLimit, dead_letter
from libs.streams.retry import Backoff
from libs.streams.time_limit import TimeLimit
from libs.streams.types import Done, Handler, Held, Output, StreamRecord
from libs.telemetry import metrics
from libs.telemetry.logs import get_logger

_records = lru_cache(maxsize=1024)(metrics.RECORDS.labels)  # finding a child costs more than counting in it


@dataclass(frozen=True, slots=True)
class LoopOptions:
    """The loop's bounds; see ServiceSettings for what each one means."""

    max_in_flight: int = 64
    max_held: int = 4096
    commit_interval_seconds: float = 0.5
    tick_seconds: float = 1.0
    handle_timeout_seconds: float = 120.0
    max_attempts: int = 5
    stall_seconds: float = 60.0
    drain_seconds: float = 20.0
    dead_letters_in_a_row: int = 100
    dead_letter_share: float = 0.5
    output_suffix: str = ""
    claims_url: str = ""
    backoff: Backoff = field(default_factory=Backoff)

    @classmethod
    def of(cls, settings: ServiceSettings) -> LoopOptions:
        return cls(
            max_in_flight=settings.stream_max_in_flight,
            max_held=settings.stream_max_held,
            commit_interval_seconds=settings.stream_commit_interval_seconds,
            handle_timeout_seconds=settings.stream_handle_timeout_seconds,
            max_attempts=settings.stream_max_attempts,
            stall_seconds=settings.stream_stall_seconds,
            drain_seconds=settings.stream_drain_seconds,
            dead_letters_in_a_row=settings.stream_dead_letters_in_a_row,
            dead_letter_share=settings.stream_dead_letter_share,
            output_suffix=settings.stream_output_suffix,
            claims_url=settings.claims_url,
            backoff=Backoff(max_seconds=settings.stream_backoff_max_seconds),
        )


class Abandoned(Exception):
    """The loop is draining: a record that waits for its next try is left for the next owner."""


class Worker:
    """Carries records through a handler. `draining` set means: finish what runs, start no further try."""

    def __init__(self, service: str, handler: Handler, producer: Producer, options: LoopOptions) -> None:
        self._service = service
        self._handler = handler
        self._producer = producer
        self._options = options
        self._time = TimeLimit(options.handle_timeout_seconds)
        self._limit = DeadLetterLimit(options.dead_letters_in_a_row, options.dead_letter_share)
        self._log = get_logger(f"streams.{service}")
        self._seconds = metrics.RECORD_SECONDS.labels(service)
        self.draining = asyncio.Event()

    async def handle(self, record: StreamRecord) -> Done | Held:
        """Handle one record, or set it aside: a dead letter is Done as well. Raises StopError and Abandoned."""
        began = time.perf_counter()
        attempts = 0

        def tried() -> None:
            nonlocal attempts
            attempts += 1

        result: Done | Held = Held()
        try:
            result = await self._tries(record, tried)
            if isinstance(result, Done):
                await self._complete(result)
        except DeadLetterError as error:
            await self._bury((record,), error, attempts)
            return Done(completes=result.completes if isinstance(result, Done) else ())
        self._limit.good()
        self._seconds.observe(time.perf_counter() - began)
        self._count(record, "held" if isinstance(result, Held) else result.outcome)
        return result

    async def complete(self, done: Done) -> None:
        """Produce and finalize what a tick returned; records that it completes are set aside if they cannot be."""
        with contextlib.suppress(DeadLetterError):  # its records have been set aside
            await self._complete(done)

    async def _complete(self, done: Done) -> None:
        try:
            await self.produce(done.outputs)
        except DeadLetterError as error:
            # The handler has let go of the records that this output was made of: none may stay held for ever.
            if done.refused is not None:
                done.refused()
            await self._bury(done.completes, error, 1)
            raise
        if done.finalize is not None:
            await self._finalize(done.finalize)
        for record in done.completes:
            self._count(record, "done")

    async def _tries(self, record: StreamRecord, tried: Callable[[], None]) -> Done | Held:
        faults = 0
        for attempt in range(1_000_000_000):
            tried()
            try:
                with self._time.watch() as limit:
                    return await self._handler.handle(await self._opened(record))
            except Exception as error:
                if isinstance(error, TimeoutError) and limit.expired:
                    error = DeadLetterError(
                        f"not handled within {self._options.handle_timeout_seconds} s (stream_handle_timeout_seconds)",
                        reason="handle_timeout",
                    )
                elif isinstance(error, DeadLetterError | StopError):
                    raise
                if not isinstance(error, RetryError):
                    if isinstance(error, ClawbackError) and error.action == "stop":
                        raise
                    faults += 1
                    if faults >= self._options.max_attempts:
                        raise _fault(error) from error
                await self._wait(attempt, error, record.id)
        raise AssertionError("unreachable")

    async def _opened(self, record: StreamRecord) -> StreamRecord:
        """The record itself, if the topic carries only a ticket for it."""
        if not claims.is_ticket(record.value):
            return record
        return replace(record, value=await asyncio.to_thread(claims.redeem, record.value, self._options.claims_url))

    async def produce(self, outputs: Sequence[Output]) -> None:
        """Send until every output is acknowledged. Raises DeadLetterError, StopError and Abandoned."""
        suffix = self._options.output_suffix
        left: Sequence[Output] = [Output(o.topic + suffix, o.key, o.value) for o in outputs] if suffix else outputs
        for attempt in range(1_000_000_000):
            left = await self._producer.send_all(left) if left else ()
            if not left:
                return
            await self._wait(attempt, RetryError(f"{len(left)} not acknowledged", reason="produce"), left[0].topic)

    async def _finalize(self, finalize: Callable[[], Awaitable[None]]) -> None:
        faults = 0
        for attempt in range(1_000_000_000):
            try:
                async with asyncio.timeout(self._options.handle_timeout_seconds):
                    return await finalize()
            except RetryError as error:
                await self._wait(attempt, error, "finalize")
            except StopError:
                raise
            except Exception as error:
                # The outputs are out, so the record is no dead letter; without its state written it is not done either.
                faults += 1
                if faults >= self._options.max_attempts:
                    raise StopError(f"finalize failed {faults} times: {error!r}", reason="finalize") from error
                await self._wait(attempt, error, "finalize")
        raise AssertionError("unreachable")

    async def _bury(self, records: Sequence[StreamRecord], error: DeadLetterError, attempts: int) -> None:
        for record in records:
            why = self._limit.bad()
            if why is not None:
                raise StopError(f"{why}; the newest: {record.id}: {error}", reason="dead_letter_limit") from error
            self._log.error("dead letter", record=record.id, reason=error.reason, error=str(error), attempts=attempts)
            await self._send_dead_letter(record, error, attempts)
            metrics.DEAD_LETTERS.labels(self._service, error.reason).inc()
            self._count(record, "dead_lettered")

    async def _send_dead_letter(self, record: StreamRecord, error: DeadLetterError, attempts: int) -> None:
        for whole in (True, False):
            letter = dead_letter(
                record,
                service=self._service,
                reason=error.reason,
                error=str(error),
                attempts=attempts,
                failed_at=time.time(),
                whole=whole,
            )
            try:
                await self.produce((letter,))
                return
            except DeadLetterError:
                continue
        raise StopError(f"{record.id}: not even its dead letter fits", reason="dead_letter") from error

    async def _wait(self, attempt: int, error: Exception, what: str) -> None:
        reason = error.reason if isinstance(error, ClawbackError) else type(error).__name__
        metrics.RETRIES.labels(self._service, reason).inc()
        seconds = self._options.backoff.delay(attempt)
        self._log.warning("retry", what=what, reason=reason, error=str(error), attempt=attempt + 1, seconds=seconds)
        try:
            async with asyncio.timeout(seconds):
                await self.draining.wait()
        except TimeoutError:
            return
        raise Abandoned(what)

    def _count(self, record: StreamRecord, outcome: str) -> None:
        _records(self._service, record.topic, outcome).inc()


def _fault(error: Exception) -> DeadLetterError:
    if isinstance(error, DeadLetterError):
        return error
    return DeadLetterError(f"{type(error).__name__}: {error}", reason="handler_fault")
