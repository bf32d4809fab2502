"""The Kafka side of the loop's contract (libs.streams.backend), on aiokafka."""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener, TopicPartition
from aiokafka.errors import (
    BrokerNotAvailableError,
    CommitFailedError,
    IllegalStateError,
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
    KafkaUnavailableError,
    MessageSizeTooLargeError,
    RecordTooLargeError,
    ReplicaNotAvailableError,
    UnknownError,
)
from aiokafka.partitioner import murmur2

from libs.contracts import claims
from libs.errors import ConfigError, DeadLetterError, RetryError, StopError
from libs.streams.backend import Listener
from libs.streams.config import ServiceSettings
from libs.streams.diagnose import why_unreachable
from libs.streams.retry import Backoff
from libs.streams.types import Output, Partition, StreamRecord
from libs.telemetry.logs import get_logger

_log = get_logger("streams.kafka")

# Acknowledgements arrive late when the broker stalls: a short timeout reports sends as failed that were stored.
_REQUEST_TIMEOUT_MS = 40_000
_MAX_POLL_INTERVAL_MS = 300_000
RECORD_OVERHEAD_BYTES = 16 * 1024  # key, headers and batch around a value, with room to spare
_MAY_PASS = (
    OSError,
    KafkaTimeoutError,
    KafkaUnavailableError,
    BrokerNotAvailableError,
    ReplicaNotAvailableError,
    UnknownError,
)


def client_options(settings: ServiceSettings) -> dict[str, Any]:
    """What consumers, producers and admin clients share: addresses and credentials. Raises ConfigError."""
    protocol = settings.kafka_security_protocol
    options: dict[str, Any] = {
        "bootstrap_servers": settings.kafka_bootstrap_servers,
        "security_protocol": protocol,
        "request_timeout_ms": _REQUEST_TIMEOUT_MS,
    }
    if protocol in ("SSL", "SASL_SSL"):
        try:
            options["ssl_context"] = ssl.create_default_context(cafile=settings.kafka_ssl_cafile)
        except OSError as error:
            raise ConfigError(f"CLAWBACK_KAFKA_SSL_CAFILE: cannot read {settings.kafka_ssl_cafile}: {error}") from error
    if protocol.startswith("SASL"):
        if not (settings.kafka_sasl_mechanism and settings.kafka_sasl_username and settings.kafka_sasl_password):
            raise ConfigError(f"{protocol} needs CLAWBACK_KAFKA_SASL_MECHANISM, _USERNAME and _PASSWORD")
        options |= {
            "sasl_mechanism": settings.kafka_sasl_mechanism,
            "sasl_plain_username": settings.kafka_sasl_username,
            "sasl_plain_password": settings.kafka_sasl_password,
        }
    return options


def consumer_options(settings: ServiceSettings) -> dict[str, Any]:
    """Fetch settings for grouped and un-grouped readers alike."""
    return client_options(settings) | {
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
        "fetch_max_wait_ms": settings.kafka_fetch_max_wait_ms,
        "max_partition_fetch_bytes": settings.kafka_max_request_size,
        "isolation_level": "read_committed",
    }


def to_record(message: Any) -> StreamRecord:
    """aiokafka's ConsumerRecord as ours."""
    return StreamRecord(
        message.topic, message.partition, message.offset, message.key, message.value or b"", message.timestamp
    )


class KafkaConsumer(ConsumerRebalanceListener):  # type: ignore[misc]
    """A member of the consumer group `group` on `topics`. Commits by hand only."""

    def __init__(self, settings: ServiceSettings, topics: Collection[str], group: str) -> None:
        self._settings = settings
        self._topics = list(topics)
        self._group = group
        self._client: AIOKafkaConsumer | None = None
        self._listener: Listener | None = None
        self._fetch: asyncio.Task[Any] | None = None
        self._backoff = Backoff()

    async def start(self, listener: Listener) -> None:
        """Join the group. Tries again for ever while the broker is away. Raises ConfigError."""
        self._listener = listener
        options = consumer_options(self._settings)
        attempt = 0
        while True:
            client = AIOKafkaConsumer(
                group_id=self._group,
                session_timeout_ms=self._settings.kafka_session_timeout_ms,
                heartbeat_interval_ms=self._settings.kafka_heartbeat_interval_ms,
                rebalance_timeout_ms=self._settings.kafka_rebalance_timeout_ms,
                max_poll_interval_ms=_MAX_POLL_INTERVAL_MS,
                **options,
            )
            client.subscribe(self._topics, listener=self)
            self._client = client
            try:
                await client.start()
                return
            except (KafkaError, OSError) as error:
                await client.stop()
                cause = await why_unreachable(client_options(self._settings)) or repr(error)
                _log.warning("cannot join yet", group=self._group, error=cause, attempt=attempt + 1)
            await asyncio.sleep(self._backoff.delay(attempt))
            attempt += 1

    async def fetch(self, max_records: int, timeout_seconds: float) -> list[StreamRecord]:
        """See Consumer.fetch. The wait is a task of its own, so that a rebalance can end it (nothing is drained)."""
        client = self._started()
        self._fetch = asyncio.ensure_future(
            client.getmany(timeout_ms=int(timeout_seconds * 1000), max_records=max_records)
        )
        try:
            batches = await self._fetch
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                self._fetch.cancel()
                raise
            return []  # a rebalance began
        except (KafkaError, OSError) as error:
            raise as_ours(error, "fetch") from error
        finally:
            self._fetch = None
        return [to_record(message) for batch in batches.values() for message in batch]

    async def commit(self, positions: Mapping[Partition, int]) -> bool:
        client = self._started()
        offsets = {TopicPartition(*p): offset for p, offset in positions.items()}
        try:
            await client.commit(offsets)
        except (CommitFailedError, IllegalStateError) as error:
            _log.warning("commit refused, the group moved on", group=self._group, error=repr(error))
            return False
        except (KafkaError, OSError) as error:
            raise as_ours(error, "commit") from error
        return True

    def seek(self, partition: Partition, offset: int) -> None:
        self._started().seek(TopicPartition(*partition), offset)

    def pause(self) -> None:
        client = self._started()
        client.pause(*client.assignment())

    def resume(self) -> None:
        client = self._started()
        client.resume(*(client.assignment() & client.paused()))

    def assignment(self) -> set[Partition]:
        return {(tp.topic, tp.partition) for tp in self._client.assignment()} if self._client else set()

    async def unread(self) -> dict[Partition, int]:
        client = self._started()
        partitions = list(client.assignment())
        if not partitions:
            return {}
        try:
            async with asyncio.timeout(_REQUEST_TIMEOUT_MS / 1000):
                ends = await client.end_offsets(partitions)
                return {
                    # The local broker lists an end before its newest batch; what fetches report is right.
                    (tp.topic, tp.partition): max(
                        0, max(ends[tp], client.highwater(tp) or 0) - await client.position(tp)
                    )
                    for tp in partitions
                }
        except IllegalStateError:
            return {}  # reassigned in between
        except (KafkaError, OSError) as error:
            raise as_ours(error, "end_offsets") from error

    async def stop(self) -> None:
        if self._client is None:
            return
        if not self._settings.kafka_leave_group and self._client._coordinator is not None:
            # aiokafka has no setting for it; the member's session then runs out as after a crash.
            self._client._coordinator._maybe_leave_group = _stay
        await self._client.stop()

    async def on_partitions_revoked(self, revoked: Collection[TopicPartition]) -> None:
        if self._fetch is not None:
            self._fetch.cancel()
        assert self._listener is not None
        await self._listener.on_revoked({(tp.topic, tp.partition) for tp in revoked})

    async def on_partitions_assigned(self, assigned: Collection[TopicPartition]) -> None:
        assert self._listener is not None
        await self._listener.on_assigned({(tp.topic, tp.partition) for tp in assigned})

    def _started(self) -> AIOKafkaConsumer:
        if self._client is None:
            raise StopError("the consumer was not started", reason="not_started")
        return self._client


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


async def _stay() -> None:
    return None


def as_ours(error: Exception, what: str) -> RetryError | StopError:
    """Kafka marks which errors may pass; a few more do. The others (authorisation, fencing, a dead coordinator task)
    need a restart."""
    if isinstance(error, _MAY_PASS) or getattr(error, "retriable", False):
        return RetryError(f"kafka {what}: {error!r}", reason=f"kafka_{what}")
    return StopError(f"kafka {what}: {error!r}", reason=f"kafka_{what}")
