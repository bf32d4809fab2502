"""Read whole topics without a group: from the beginning, then on. For small logs such as policy.releases, and taps."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection
from typing import Literal

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import IllegalStateError, KafkaError

from libs.errors import RetryError
from libs.streams.client import consumer_options, partitions_of, to_record
from libs.streams.config import ServiceSettings
from libs.streams.retry import Backoff
from libs.streams.types import Partition, StreamRecord
from libs.telemetry.logs import get_logger

_log = get_logger("streams.follow")
_CAUGHT_UP_SECONDS = 0.5
_ENDS_SECONDS = 30.0


async def read(
    settings: ServiceSettings,
    topics: Collection[str],
    *,
    start: Literal["beginning", "end"] = "beginning",
    follow: bool = False,
) -> AsyncIterator[StreamRecord | None]:
    """Every record of every partition of `topics`, in offset order per partition.

    Yields None once, when all that was there at the call has been read; without `follow` it then ends. Topics that do
    not exist yet are empty. Raises RetryError when the broker is away.
    """
    client = AIOKafkaConsumer(**consumer_options(settings))
    try:
        await client.start()
        partitions = await partitions_of(client, topics)
        while not partitions and follow:
            yield None
            await asyncio.sleep(_CAUGHT_UP_SECONDS)
            partitions = await partitions_of(client, topics)
        if not partitions:
            yield None
            return
        ends = await _ends(client, partitions)
        begins = await client.beginning_offsets(partitions)
        for partition in partitions:
            client.seek(partition, begins[partition] if start == "beginning" else ends[partition])
        caught_up = False
        while True:
            if not caught_up and await _reached(client, ends):
                caught_up = True
                yield None
                if not follow:
                    return
            batches = await client.getmany(timeout_ms=int(_CAUGHT_UP_SECONDS * 1000), max_records=500)
            for partition, batch in batches.items():
                for message in batch:
                    if follow or message.offset < ends[partition]:
                        yield to_record(message)
    except (KafkaError, OSError) as error:
        raise RetryError(f"cannot read {', '.join(topics)}: {error!r}", reason="kafka_read") from error
    finally:
        await client.stop()


async def end_offsets(settings: ServiceSettings, topics: Collection[str]) -> dict[Partition, int]:
    """One past the newest record of every partition. Raises RetryError when the broker is away."""
    client = AIOKafkaConsumer(**consumer_options(settings))
    try:
        await client.start()
        partitions = await partitions_of(client, topics)
        return {(tp.topic, tp.partition): end for tp, end in (await _ends(client, partitions)).items()}
    except (KafkaError, OSError) as error:
        raise RetryError(f"cannot read {', '.join(topics)}: {error!r}", reason="kafka_read") from error
    finally:
        await client.stop()


async def _ends(client: AIOKafkaConsumer, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
    """The high watermarks that fetches report: the local broker's ListOffsets leaves out its newest batch."""
    if not partitions:
        return {}
    listed: dict[TopicPartition, int] = await client.end_offsets(partitions)
    client.assign(partitions)
    for partition, offset in listed.items():
        client.seek(partition, offset)
    async with asyncio.timeout(_ENDS_SECONDS):
        while any(client.highwater(partition) is None for partition in partitions):
            await client.getmany(timeout_ms=20)  # read again by the caller, who seeks
    return {partition: max(listed[partition], client.highwater(partition)) for partition in partitions}


async def _reached(client: AIOKafkaConsumer, ends: dict[TopicPartition, int]) -> bool:
    try:
        return all([await client.position(p) >= end for p, end in ends.items()])
    except IllegalStateError:
        return False


class Follower:
    """Applies every record of `topics` to `apply`, in the background, reconnecting for ever.

    `start` returns when all that was there has been applied, or at once with a patience of 0. If the broker stays away
    for `patience_seconds`, the state is behind and `caught_up` is not set. After a reconnect everything is applied
    again: `apply` is idempotent. An exception of `apply` is logged and the record skipped.
    """

    def __init__(
        self, settings: ServiceSettings, topics: Collection[str], apply: Callable[[StreamRecord], None]
    ) -> None:
        self._settings = settings
        self._topics = list(topics)
        self._apply = apply
        self._task: asyncio.Task[None] | None = None
        self.caught_up = asyncio.Event()

    async def start(self, patience_seconds: float = 30.0) -> None:
        self._task = asyncio.create_task(self._run())
        if patience_seconds <= 0:
            return
        try:
            async with asyncio.timeout(patience_seconds):
                await self.caught_up.wait()
        except TimeoutError:
            _log.warning("not caught up yet", topics=self._topics, patience_seconds=patience_seconds)

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        backoff, attempt = Backoff(), 0
        while True:
            try:
                async for record in read(self._settings, self._topics, follow=True):
                    attempt = 0
                    if record is None:
                        self.caught_up.set()
                        continue
                    try:
                        self._apply(record)
                    except Exception as error:
                        _log.error("record skipped", record=record.id, error=repr(error))
            except RetryError as error:
                _log.warning("follow again", topics=self._topics, error=str(error))
            except Exception:  # whatever it was: one that ended would leave its reader behind without a word
                _log.exception("following failed", topics=self._topics)
            await asyncio.sleep(backoff.delay(attempt))
            attempt += 1
