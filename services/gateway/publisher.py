"""From the spool to traffic.raw: in order, at least once, each record under one exchange id.

The client never waits for this. A record that the broker acknowledged but whose position was not written before a
crash is sent again with the same exchange id; consumers drop the repetition by that id.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaConnectionError, KafkaError, MessageSizeTooLargeError

from libs.contracts import claims
from libs.contracts.traffic_raw import TOPIC
from libs.errors import RetryError
from libs.streams.client import client_options
from libs.streams.config import ServiceSettings
from libs.telemetry import metrics
from libs.telemetry.logs import get_logger
from services.gateway.spool import Cursor, Frame, Spool

log = get_logger("gateway.publisher")

_BATCH_RECORDS = 500
_BATCH_BYTES = 4 * 1024 * 1024
# Of a partition one batch is on its way at a time, and each takes a dozen turns of the loop: on a saturated loop the
# batch's size is what bounds the rate. A quiet gateway never fills one.
_PRODUCER_BATCH_BYTES = 1024 * 1024
_SEND_SECONDS = 100.0  # more than two of the client's own request time-outs: it answers late, or not at all
_FRESH_AFTER = 3  # failures in a row
# Records gather this long before they are read and sent: the answers that they belong to go out first, and those that
# come at the same time share a batch.
_GATHER_SECONDS = 0.05
_BACKOFF_SECONDS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)


class Producer(Protocol):
    """The part of AIOKafkaProducer that is used here."""

    async def start(self) -> None: ...
    async def stop(self) -> None: ...
    async def send(self, topic: str, value: bytes, key: bytes | None) -> asyncio.Future[Any]: ...


def kafka_producer(settings: ServiceSettings) -> AIOKafkaProducer:
    """A producer with acks=all; TLS and SASL as the settings say."""
    return AIOKafkaProducer(
        **client_options(settings),
        acks="all",
        enable_idempotence=settings.kafka_idempotent_producer,
        max_batch_size=min(_PRODUCER_BATCH_BYTES, settings.kafka_max_request_size),
        max_request_size=settings.kafka_max_request_size,
        compression_type="zstd",
    )


class Publisher:
    """Runs for the life of the process. `wake` says that the spool has grown."""

    def __init__(
        self,
        spool: Spool,
        producer_factory: Callable[[], Producer],
        *,
        topic: str = TOPIC,
        max_value_bytes: int = 8 * 1024 * 1024,
        claims_url: str = "",
        why_unreachable: Callable[[], Awaitable[str]] | None = None,
    ) -> None:
        self._why = why_unreachable
        self._spool, self._factory, self._topic = spool, producer_factory, topic
        self._max_value_bytes, self._claims_url = max_value_bytes, claims_url
        self._producer: Producer | None = None
        self._beyond: set[Cursor] = set()  # acknowledged, but behind a record that is not
        self._grown = asyncio.Event()
        self._idle = asyncio.Event()
        self.connected = False

    def wake(self) -> None:
        """Called after every append."""
        self._idle.clear()
        self._grown.set()

    async def run(self) -> None:
        """Publish until cancelled. Broker errors are retried for ever, with a pause that grows to five seconds."""
        try:
            await self._connect()  # ahead of the first record, which then goes out at once
        except (KafkaError, OSError, TimeoutError) as error:
            await self._report(error)
        failures = 0
        while True:
            self._grown.clear()
            frames = self._spool.read(self._spool.head, max_records=_BATCH_RECORDS, max_bytes=_BATCH_BYTES)
            if not frames:
                self._idle.set()
                await self._grown.wait()
                await asyncio.sleep(_GATHER_SECONDS)
                continue
            try:
                await self._publish(frames)
                failures = 0
            except (KafkaError, RetryError, OSError, TimeoutError) as error:
                self.connected = False
                failures += 1
                if failures % _FRESH_AFTER == 0 or isinstance(error, TimeoutError):
                    await self.stop()  # a client that has lost its way (replaced brokers) is replaced too
                if failures == 1:
                    await self._report(error)
                await asyncio.sleep(_BACKOFF_SECONDS[min(failures, len(_BACKOFF_SECONDS)) - 1])

    async def _report(self, error: Exception) -> None:
        """One line with the cause; the client's own error does not tell a refused certificate from a closed port."""
        cause = await self._why() if self._why and isinstance(error, KafkaConnectionError) else ""
        log.warning("broker_unreachable", error=cause or str(error), waiting_records=self._spool.records)

    async def drained(self, timeout_seconds: float) -> bool:
        """Wait until all is sent. False when the broker does not take it in time (it stays in the spool)."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_seconds):
                await self._idle.wait()
        return self._spool.records == 0

    async def stop(self) -> None:
        """Let the producer go; a later send makes a new one."""
        producer, self._producer = self._producer, None
        if producer is not None:
            with contextlib.suppress(KafkaError, OSError, TimeoutError):
                await asyncio.wait_for(producer.stop(), 5.0)

    async def _publish(self, frames: Sequence[Frame]) -> None:
        """Send a batch and wait for all of it. Raises the first failure after noting what went through."""
        await self._connect()
        todo = [frame for frame in frames if frame.end not in self._beyond]
        async with asyncio.timeout(_SEND_SECONDS):
            results = await self._send(todo)
        failure: BaseException | None = None
        for frame, result in zip(todo, results, strict=True):
            if isinstance(result, MessageSizeTooLargeError):
                metrics.GATEWAY_DROPPED.labels("over_topic_limit").inc()
            elif isinstance(result, BaseException):
                failure = failure or result
                continue
            self._beyond.add(frame.end)
        self._ack(frames)
        if failure is not None:
            raise failure
        self.connected = True

    async def _connect(self) -> None:
        if self._producer is not None:
            return
        producer = self._factory()
        try:
            await producer.start()
        except BaseException:
            with contextlib.suppress(Exception):
                await producer.stop()
            raise
        self._producer, self.connected = producer, True

    def _ack(self, frames: Sequence[Frame]) -> None:
        """Move the spool's head over the front without a gap; what lies behind a gap is not sent again meanwhile."""
        done = 0
        while done < len(frames) and frames[done].end in self._beyond:
            self._beyond.discard(frames[done].end)
            done += 1
        if done:
            self._spool.ack(frames[done - 1].end, done)
            metrics.GATEWAY_PUBLISHED.inc(done)
            metrics.GATEWAY_SPOOL_RECORDS.set(self._spool.records)
            metrics.GATEWAY_SPOOL_BYTES.set(self._spool.size)

    async def _fitting(self, value: bytes) -> bytes:
        """The value, or over the topic's limit a ticket for it. Raises RetryError when the blob store is away."""
        if len(value) <= self._max_value_bytes:
            return value
        return await asyncio.to_thread(claims.store, value, self._claims_url, self._topic)

    async def _send(self, frames: Sequence[Frame]) -> list[Any]:
        assert self._producer is not None
        sent: list[Any] = []
        for frame in frames:
            try:
                value = await self._fitting(frame.value)
                sent.append(await self._producer.send(self._topic, value=value, key=frame.key))
            except (KafkaError, RetryError) as error:
                failed: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
                failed.set_exception(error)
                sent.append(failed)
                if not isinstance(error, MessageSizeTooLargeError | RetryError):
                    break  # the rest would wait for the same broker; a claim store that is away holds back less
        results = await asyncio.gather(*sent, return_exceptions=True)
        return [*results, *([results[-1]] * (len(frames) - len(results)))]
