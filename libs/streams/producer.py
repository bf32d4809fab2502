"""The producer of the loop's contract (libs.streams.backend), on aiokafka."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.errors import (
    KafkaConnectionError,
    KafkaError,
    MessageSizeTooLargeError,
    RecordTooLargeError,
    UnknownError,
)
from aiokafka.partitioner import murmur2

from libs.contracts import claims
from libs.errors import DeadLetterError, RetryError
from libs.streams.client import RECORD_OVERHEAD_BYTES, as_ours, client_options
from libs.streams.config import ServiceSettings
from libs.streams.diagnose import why_unreachable
from libs.streams.types import Output
from libs.telemetry.logs import get_logger

_log = get_logger("streams.producer")

_hash: Callable[[bytes], int] = lru_cache(maxsize=65_536)(murmur2)  # slow in Python, and sessions come again


def partition_of(key: bytes | None, partitions: Sequence[int], available: Sequence[int]) -> int:
    """Where a record goes, as every Kafka client puts it: by the murmur2 of its key, else anywhere."""
    if key is None:
        return random.choice(available or partitions)
    return partitions[(_hash(key) & 0x7FFFFFFF) % len(partitions)]


class KafkaProducer:
    """acks=all; connects on the first send, so that a service starts while the broker is away."""

    def __init__(self, settings: ServiceSettings) -> None:
        self._settings = settings
        self._client: AIOKafkaProducer | None = None
        self._starting = asyncio.Lock()

    async def send_all(self, outputs: Sequence[Output]) -> list[Output]:
        """See Producer.send_all."""
        try:
            client = await self._connected()
        except RetryError as error:
            _log.warning("cannot reach the broker", error=str(error))
            return list(outputs)
        # Queued one after another and awaited afterwards: a task for each would cost more than the sending.
        queued = [await self._queued(client, o) for o in outputs]
        results = [await self._acknowledged(one, o) for one, o in zip(queued, outputs, strict=True)]
        for result in results:
            if result is not None and not isinstance(result, RetryError):
                raise result
        left: list[Output] = []
        for output, result in zip(outputs, results, strict=True):
            if result is not None:
                _log.warning("not acknowledged", topic=output.topic, error=str(result))
                left.append(output)
        return left

    async def send(self, output: Output) -> None:
        """Send one record and wait for the acknowledgement. Raises RetryError, DeadLetterError, StopError."""
        result = await self._acknowledged(await self._queued(await self._connected(), output), output)
        if result is not None:
            raise result

    async def ping(self) -> None:
        """Raise RetryError when the broker does not answer."""
        client = await self._connected()
        try:
            async with asyncio.timeout(5.0):
                await client.client.fetch_all_metadata()
        except (KafkaError, OSError) as error:  # TimeoutError is an OSError
            raise RetryError(f"kafka: no answer: {error!r}", reason="kafka_ping") from error

    async def stop(self) -> None:
        """Flush and close."""
        client, self._client = self._client, None
        if client is not None:
            await client.stop()

    async def _connected(self) -> AIOKafkaProducer:
        async with self._starting:
            if self._client is not None:
                return self._client
            client = AIOKafkaProducer(
                acks="all",
                linger_ms=5,
                max_batch_size=131_072,
                max_request_size=self._settings.kafka_max_request_size,
                compression_type="zstd",
                partitioner=partition_of,
                enable_idempotence=self._settings.kafka_idempotent_producer,
                **client_options(self._settings),
            )
            try:
                await client.start()
            except (KafkaError, OSError) as error:
                await client.stop()
                if isinstance(error, UnknownError) and self._settings.kafka_idempotent_producer:
                    raise RetryError(
                        "kafka connect: the broker gives no producer id; one without idempotent producers (the local "
                        "one) needs CLAWBACK_KAFKA_IDEMPOTENT_PRODUCER=false",
                        reason="kafka_connect",
                    ) from error
                fault = as_ours(error, "connect")
                if isinstance(error, KafkaConnectionError) and (
                    cause := await why_unreachable(client_options(self._settings))
                ):
                    raise RetryError(f"kafka connect: {cause}", reason=fault.reason) from error
                raise fault from error
            self._client = client
            return client

    async def _queued(self, client: AIOKafkaProducer, output: Output) -> asyncio.Future[Any] | Exception:
        """Put the record into a batch: the future of its acknowledgement, or why it could not be put there."""
        key = None if output.key is None else output.key.encode()
        value = output.value
        try:
            if len(value) > self._settings.kafka_max_request_size - RECORD_OVERHEAD_BYTES:
                value = await asyncio.to_thread(claims.store, value, self._settings.claims_url, output.topic)
            future: asyncio.Future[Any] = await client.send(output.topic, value, key=key)
        except Exception as error:
            return error
        return future

    async def _acknowledged(self, sent: asyncio.Future[Any] | Exception, output: Output) -> Exception | None:
        """None once the broker has it, else the error in our terms."""
        try:
            if isinstance(sent, Exception):
                raise sent
            await sent
        except (MessageSizeTooLargeError, RecordTooLargeError):
            return DeadLetterError(
                f"a record of {len(output.value)} bytes does not fit into {output.topic}; the limits are "
                f"CLAWBACK_KAFKA_MAX_REQUEST_SIZE={self._settings.kafka_max_request_size} and the topic's "
                "max.message.bytes",
                reason="output_too_large",
            )
        except (KafkaError, OSError) as error:
            return as_ours(error, "produce")
        except Exception as error:
            return error
        return None
