"""A broker in memory with the contract of libs.streams.backend: for tests of handlers and of the loop itself.

It keeps what matters to a consumer: partitions chosen by key, offsets, consumer groups with eager rebalancing and
committed offsets. It loses everything with the process.
"""

from __future__ import annotations

import asyncio
import zlib
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

from libs.errors import DeadLetterError, RetryError
from libs.streams.backend import Listener
from libs.streams.types import Output, Partition, StreamRecord


class _Group:
    def __init__(self) -> None:
        self.members: list[MemoryConsumer] = []
        self.committed: dict[Partition, int] = {}
        self.changing = asyncio.Lock()


class MemoryBroker:
    """Topics spring into being with `partitions` partitions each. `available` false makes every call fail."""

    def __init__(self, partitions: int = 2, max_request_size: int = 8 * 1024 * 1024) -> None:
        self.partitions = partitions
        self.max_request_size = max_request_size
        self.available = True
        self._logs: dict[Partition, list[StreamRecord]] = {}
        self._groups: dict[str, _Group] = defaultdict(_Group)
        self._round_robin = 0
        self._arrived = asyncio.Event()

    def append(self, output: Output) -> StreamRecord:
        """Store one record and wake the readers."""
        if output.key is None:
            self._round_robin += 1
        where = self._round_robin if output.key is None else zlib.crc32(output.key.encode())
        log = self.log((output.topic, where % self.partitions))
        key = None if output.key is None else output.key.encode()
        record = StreamRecord(output.topic, where % self.partitions, len(log), key, output.value)
        log.append(record)
        self._arrived.set()
        return record

    def log(self, partition: Partition) -> list[StreamRecord]:
        return self._logs.setdefault(partition, [])

    def records(self, topic: str) -> list[StreamRecord]:
        """All records of a topic, partition by partition."""
        return [r for p in range(self.partitions) for r in self.log((topic, p))]

    def committed(self, group: str) -> dict[Partition, int]:
        return dict(self._groups[group].committed)

    def consumer(self, topics: Collection[str], group: str) -> MemoryConsumer:
        return MemoryConsumer(self, topics, group)

    def producer(self) -> MemoryProducer:
        return MemoryProducer(self)

    def group(self, name: str) -> _Group:
        return self._groups[name]

    async def rebalance(self, group: _Group) -> None:
        """Eager: every member gives up all, then all is dealt out again."""
        async with group.changing:
            members = [m for m in group.members if m.alive]
            await asyncio.gather(*(m.give_up() for m in members))
            topics = sorted({t for m in members for t in m.topics})
            wanted = [(t, p) for t in topics for p in range(self.partitions)]
            dealt: dict[int, set[Partition]] = {id(m): set() for m in members}
            for number, partition in enumerate(wanted):
                takers = [m for m in members if partition[0] in m.topics]
                dealt[id(takers[number % len(takers)])].add(partition)
            for member in members:
                await member.take(dealt[id(member)], group.committed)

    def check(self) -> None:
        if not self.available:
            raise RetryError("the in-memory broker is away", reason="memory")

    async def arrival(self, timeout_seconds: float) -> None:
        self._arrived.clear()
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._arrived.wait()
        except TimeoutError:
            return


class MemoryConsumer:
    """See libs.streams.backend.Consumer."""

    def __init__(self, broker: MemoryBroker, topics: Collection[str], group: str) -> None:
        self.topics = list(topics)
        self.alive = False
        self._broker = broker
        self._group = broker.group(group)
        self._listener: Listener | None = None
        self._positions: dict[Partition, int] = {}
        self._paused = False
        self._revoked = False

    async def start(self, listener: Listener) -> None:
        self._listener = listener
        while not self._broker.available:
            await self._broker.arrival(0.05)
        self.alive = True
        self._group.members.append(self)
        await self._broker.rebalance(self._group)

    async def fetch(self, max_records: int, timeout_seconds: float) -> list[StreamRecord]:
        self._broker.check()
        found = self._read(max_records)
        if not found and timeout_seconds:
            await self._broker.arrival(timeout_seconds)
            found = self._read(max_records)
        return found

    def _read(self, max_records: int) -> list[StreamRecord]:
        found: list[StreamRecord] = []
        if self._paused or self._revoked:
            return found
        for partition, position in self._positions.items():
            more = self._broker.log(partition)[position : position + max_records - len(found)]
            self._positions[partition] = position + len(more)
            found += more
        return found

    async def commit(self, positions: Mapping[Partition, int]) -> bool:
        self._broker.check()
        if not self.alive or not set(positions) <= set(self._positions):
            return False
        self._group.committed.update(positions)
        return True

    def seek(self, partition: Partition, offset: int) -> None:
        self._positions[partition] = offset

    def pause(self) -> None:
        self._paused = True

    def resume(self) -> None:
        self._paused = False

    def assignment(self) -> set[Partition]:
        return set(self._positions)

    async def unread(self) -> dict[Partition, int]:
        self._broker.check()
        return {p: len(self._broker.log(p)) - position for p, position in self._positions.items()}

    async def stop(self) -> None:
        if self.alive:
            self.kill()
            await self._broker.rebalance(self._group)

    def kill(self) -> None:
        """Vanish without a word, as after kill -9: nothing more is delivered or committed."""
        self.alive = False
        self._positions = {}
        if self in self._group.members:
            self._group.members.remove(self)

    async def give_up(self) -> None:
        assert self._listener is not None
        self._revoked = True
        await self._listener.on_revoked(set(self._positions))

    async def take(self, partitions: Collection[Partition], committed: Mapping[Partition, int]) -> None:
        assert self._listener is not None
        self._positions = {p: committed.get(p, 0) for p in partitions}
        self._revoked = False
        await self._listener.on_assigned(set(partitions))


class MemoryProducer:
    """See libs.streams.backend.Producer."""

    def __init__(self, broker: MemoryBroker) -> None:
        self._broker = broker

    async def send_all(self, outputs: Sequence[Output]) -> list[Output]:
        await asyncio.sleep(0)  # an acknowledgement never arrives within the same step
        if not self._broker.available:
            return list(outputs)
        for output in outputs:
            size = len(output.value) + len(output.key or "")
            if size > self._broker.max_request_size:
                raise DeadLetterError(f"{size} bytes do not fit", reason="output_too_large")
        for output in outputs:
            self._broker.append(output)
        return []

    async def stop(self) -> None:
        return None
