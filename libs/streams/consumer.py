"""The consumer of the loop's contract (libs.streams.backend), on aiokafka."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import Any

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
from aiokafka.errors import CommitFailedError, IllegalStateError, KafkaError

from libs.errors import StopError
from libs.streams.backend import Listener
from libs.streams.client import REQUEST_TIMEOUT_MS, as_ours, client_options, consumer_options, to_record
from libs.streams.config import ServiceSettings
from libs.streams.diagnose import why_unreachable
from libs.streams.retry import Backoff
from libs.streams.types import Partition, StreamRecord
from libs.telemetry.logs import get_logger

_log = get_logger("streams.consumer")

_MAX_POLL_INTERVAL_MS = 300_000
_REASSIGNING_SECONDS = 0.02


class KafkaConsumer(ConsumerRebalanceListener):  # type: ignore[misc]
    """A member of the consumer group `group` on `topics`. Commits by hand only."""

    def __init__(self, settings: ServiceSettings, topics: Collection[str], group: str) -> None:
        self._settings = settings
        self._topics = list(topics)
        self._group = group
        self._client: AIOKafkaConsumer | None = None
        self._listener: Listener | None = None
        self._fetch: asyncio.Task[Any] | None = None
        self._reassigning = False
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
        if self._reassigning:
            await asyncio.sleep(_REASSIGNING_SECONDS)  # getmany would wait for the assignment, that for who fetches
            return []
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
            async with asyncio.timeout(REQUEST_TIMEOUT_MS / 1000):  # it would look for a coordinator for ever
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
            async with asyncio.timeout(REQUEST_TIMEOUT_MS / 1000):
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
        self._reassigning = True
        if self._fetch is not None:
            self._fetch.cancel()
        assert self._listener is not None
        await self._listener.on_revoked({(tp.topic, tp.partition) for tp in revoked})

    async def on_partitions_assigned(self, assigned: Collection[TopicPartition]) -> None:
        self._reassigning = False
        assert self._listener is not None
        await self._listener.on_assigned({(tp.topic, tp.partition) for tp in assigned})

    def _started(self) -> AIOKafkaConsumer:
        if self._client is None:
            raise StopError("the consumer was not started", reason="not_started")
        return self._client


async def _stay() -> None:
    return None
