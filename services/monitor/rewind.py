"""Where to begin: the monitor's state is the topics of the last `retention` seconds, read again at every start.

A fresh consumer group for each start needs no waiting for a dead member, and its offsets are set before Faust joins.
"""

from __future__ import annotations

import secrets

from aiokafka import AIOKafkaConsumer

from libs.contracts import TOPICS
from libs.streams.client import client_options, partitions_of
from libs.streams.config import ServiceSettings
from libs.streams.follow import end_offsets
from libs.streams.types import Partition


class Positions:
    """How far the topics have been read, against where they ended at the start."""

    def __init__(self) -> None:
        self.next: dict[Partition, int] = {}  # one past the newest record taken in
        self._ends: dict[Partition, int] = {}
        self._known = False

    def expect(self, ends: dict[Partition, int]) -> None:
        """`ends`: the first offset of each partition that need not be read before the figures are whole."""
        self._ends = ends
        self._known = True

    def reached(self, topic: str, partition: int, offset: int) -> None:
        """A record has been taken in."""
        self.next[(topic, partition)] = offset + 1
        if self._ends and self._ends.get((topic, partition), offset + 2) <= offset + 1:
            del self._ends[(topic, partition)]

    def caught_up(self) -> bool:
        """Whether everything that was there at the start has been read."""
        return self._known and not self._ends


def fresh_group(prefix: str) -> str:
    """A group name that no one else has."""
    return f"{prefix}-{secrets.token_hex(4)}"


async def rewind(settings: ServiceSettings, group: str, *, since: float, positions: Positions) -> None:
    """Commit, for a group without members, the offsets of `since` (unix seconds). Raises KafkaError and RetryError."""
    consumer = AIOKafkaConsumer(**client_options(settings), group_id=group, enable_auto_commit=False)
    await consumer.start()
    try:
        partitions = await partitions_of(consumer, [settings.input_topic(topic) for topic in TOPICS])
        if not partitions:
            positions.expect({})
            return
        consumer.assign(partitions)
        begins = await consumer.beginning_offsets(partitions)
        watermarks = await end_offsets(settings, {p.topic for p in partitions})
        ends = {p: watermarks.get((p.topic, p.partition), begins[p]) for p in partitions}
        at = await consumer.offsets_for_times({p: int(since * 1000) for p in partitions})
        # Nothing that young: None, or from the local broker an entry with the time -1.
        young = {p: found.offset for p, found in at.items() if found is not None and found.timestamp >= 0}
        starts = {p: min(max(young.get(p, ends[p]), begins[p]), ends[p]) for p in partitions}
        await consumer.commit(starts)
        positions.expect({(p.topic, p.partition): ends[p] for p in partitions if ends[p] > starts[p]})
    finally:
        await consumer.stop()
