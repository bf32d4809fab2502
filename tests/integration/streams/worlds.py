"""The two brokers behind one face, so that one contract suite runs on both."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Protocol

from aiokafka import AIOKafkaConsumer

from deploy.topics.create import create
from libs.streams.backend import Consumer, Producer
from libs.streams.client import consumer_options, partitions_of
from libs.streams.config import ServiceSettings
from libs.streams.consumer import KafkaConsumer
from libs.streams.follow import read
from libs.streams.loop import StartPositions, StreamLoop
from libs.streams.memory import MemoryBroker
from libs.streams.producer import KafkaProducer
from libs.streams.retry import Backoff
from libs.streams.types import Done, Handler, Held, Output, Partition, StreamRecord
from libs.streams.work import LoopOptions
from tests import strict_broker

FAST = Backoff(base_seconds=0.001, max_seconds=0.01)


class World(Protocol):
    source: str  # topics of this test alone
    target: str
    dead: str
    suffix: str

    def consumer(self, group: str) -> Consumer: ...

    def producer(self) -> Producer: ...

    async def records(self, topic: str) -> list[StreamRecord]: ...

    async def committed(self, group: str) -> dict[Partition, int]: ...


class MemoryWorld:
    suffix = ".m"
    source, target, dead = "turns.matched.m", "turns.judged.m", "dead.letters.m"

    def __init__(self) -> None:
        self.broker = MemoryBroker()

    def consumer(self, group: str) -> Consumer:
        return self.broker.consumer([self.source], group)

    def producer(self) -> Producer:
        return self.broker.producer()

    async def records(self, topic: str) -> list[StreamRecord]:
        return self.broker.records(topic)

    async def committed(self, group: str) -> dict[Partition, int]:
        return self.broker.committed(group)


class KafkaWorld:
    def __init__(self, settings: ServiceSettings, unique: str) -> None:
        self.settings = settings
        self.suffix = f".{unique}"
        self.source, self.target, self.dead = (
            f"{topic}.{unique}" for topic in ("turns.matched", "turns.judged", "dead.letters")
        )

    async def open(self) -> KafkaWorld:
        await create(
            self.settings, local=True, only=("turns.matched", "turns.judged", "dead.letters"), suffix=self.suffix
        )
        return self

    def consumer(self, group: str) -> Consumer:
        return KafkaConsumer(self.settings, [self.source], group)

    def producer(self) -> Producer:
        return KafkaProducer(self.settings)

    async def records(self, topic: str) -> list[StreamRecord]:
        return [record async for record in read(self.settings, [topic]) if record is not None]

    async def committed(self, group: str) -> dict[Partition, int]:
        client = AIOKafkaConsumer(group_id=group, **consumer_options(self.settings))
        try:
            await client.start()
            partitions = await partitions_of(client, [self.source])
            client.assign(partitions)  # without subscribing: it does not join
            found = {(tp.topic, tp.partition): await client.committed(tp) for tp in partitions}
        finally:
            await client.stop()
        return {partition: offset for partition, offset in found.items() if offset is not None}


class StrictWorld(KafkaWorld):
    """On a broker that makes a topic when it is named, and takes idempotent producers."""

    def __init__(self, bootstrap: str, unique: str) -> None:
        settings = ServiceSettings(
            kafka_bootstrap_servers=bootstrap,
            kafka_idempotent_producer=True,
            kafka_fetch_max_wait_ms=20,
            kafka_session_timeout_ms=6000,
            kafka_heartbeat_interval_ms=500,
        )
        super().__init__(settings, unique)

    async def open(self) -> StrictWorld:
        await strict_broker.create(self.settings, [self.source, self.target, self.dead])
        return self


class Script:
    """A handler whose answers a test writes; it notes what it saw."""

    def __init__(self, answer: Callable[[StreamRecord], object], tick: Callable[[], object] = lambda: None) -> None:
        self._answer = answer
        self._tick = tick
        self.seen: list[StreamRecord] = []
        self.gone: list[set[Partition]] = []

    async def handle(self, record: StreamRecord) -> Done | Held:
        self.seen.append(record)
        found = self._answer(record)
        if hasattr(found, "__await__"):
            found = await found  # type: ignore[misc]
        assert isinstance(found, Done | Held)
        return found

    async def tick(self) -> Done | None:
        found = self._tick()
        assert found is None or isinstance(found, Done)
        return found

    async def revoked(self, partitions: Collection[Partition]) -> None:
        self.gone.append(set(partitions))

    @property
    def values(self) -> list[str]:
        return [record.value.decode() for record in self.seen]


def loop_of(
    world: World,
    handler: Handler,
    group: str,
    *,
    start_positions: StartPositions | None = None,
    **options: object,
) -> StreamLoop:
    """A loop with quick retries, ticks and commits."""
    given = {
        "commit_interval_seconds": 0.05,
        "tick_seconds": 0.05,
        "backoff": FAST,
        "drain_seconds": 5.0,
        "output_suffix": world.suffix,
    } | options
    return StreamLoop(
        "test",
        handler,
        world.consumer(group),
        world.producer(),
        LoopOptions(**given),
        start_positions=start_positions,  # type: ignore[arg-type]
    )


async def put(world: World, values: Collection[str], key: Callable[[str], str] = str) -> None:
    """Produce one record a value to the source topic."""
    producer = world.producer()
    left = [Output(world.source, key(value), value.encode()) for value in values]
    while left:
        left = await producer.send_all(left)
    await producer.stop()
