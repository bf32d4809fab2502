"""Lag of every consumer group, read from the broker: a service that is down cannot report its own.

Groups are asked for by name through a consumer that never joins: the local broker's answers to the admin client's
group requests cannot be parsed by aiokafka.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Protocol

from aiokafka import AIOKafkaConsumer
from aiokafka.errors import KafkaError

from libs.streams.client import client_options, partitions_of
from libs.streams.config import ServiceSettings
from libs.streams.types import Partition
from libs.telemetry import metrics
from libs.telemetry.logs import get_logger

log = get_logger("monitor.lag")

Lags = dict[str, dict[str, int]]  # group -> topic -> records


class Sink(Protocol):
    """Who wants to know."""

    lags: Lags


async def watch_lag(
    settings: ServiceSettings,
    sink: Sink,
    groups: Mapping[str, str],
    seen: Mapping[Partition, int],
    *,
    interval_seconds: float,
) -> None:
    """Measure for ever. `groups`: the topic that each group reads; `seen`: one past the newest record read by us.

    A broker that is away leaves the last figures in place and is tried again.
    """
    while True:
        try:
            async with contextlib.AsyncExitStack() as stack:
                consumers = {group: await _consumer(settings, group, stack) for group in groups}
                while True:
                    sink.lags = {
                        g: {groups[g]: await measure(c, settings.input_topic(groups[g]), seen)}
                        for g, c in consumers.items()
                    }
                    metrics.GROUP_LAG.clear()
                    for group, topics in sink.lags.items():
                        for topic, records in topics.items():
                            metrics.GROUP_LAG.labels(group, topic).set(records)
                    await asyncio.sleep(interval_seconds)
        except (KafkaError, OSError, TimeoutError) as error:
            log.warning("lag not readable", error=repr(error))
        await asyncio.sleep(interval_seconds)


async def _consumer(settings: ServiceSettings, group: str, stack: contextlib.AsyncExitStack) -> AIOKafkaConsumer:
    consumer = AIOKafkaConsumer(**client_options(settings), group_id=group, enable_auto_commit=False)
    stack.push_async_callback(consumer.stop)
    await consumer.start()
    return consumer


async def measure(consumer: AIOKafkaConsumer, topic: str, seen: Mapping[Partition, int]) -> int:
    """Records of `topic` that the consumer's group has not committed; all of them when it never has."""
    partitions = await partitions_of(consumer, [topic])
    if not partitions:
        return 0
    begins, ends = await consumer.beginning_offsets(partitions), await consumer.end_offsets(partitions)
    behind = 0
    for partition in partitions:
        committed = await consumer.committed(partition)
        # The local broker lists an end before its newest batch; what was read is right.
        end = max(ends[partition], seen.get((topic, partition.partition), 0))
        behind += max(0, end - (begins[partition] if committed is None else committed))
    return behind
