"""What rests on a broker's manners, on one of another make: Apache Kafka's, where the local one is generous.

Its mock of group assignment refuses a second member, so the contract suite does not run on it whole.
"""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from aiokafka import AIOKafkaConsumer

from libs.streams.client import client_options, partitions_of
from libs.streams.follow import end_offsets, read
from libs.streams.types import Done, Output, StreamRecord
from services.monitor.lag import measure
from tests.eventually import eventually
from tests.integration.streams.worlds import Script, StrictWorld, loop_of, put
from tests.strict_broker import PARTITIONS

pytestmark = pytest.mark.integration


@pytest.fixture
async def world(strict_broker: str, unique: str) -> StrictWorld:
    return await StrictWorld(strict_broker, unique).open()


def copy(record: StreamRecord) -> Done:
    return Done(outputs=(Output("turns.judged", record.value.decode(), record.value),))


async def test_a_group_handles_every_record_once_with_an_idempotent_producer(world: StrictWorld, unique: str) -> None:
    assert world.settings.kafka_idempotent_producer
    sent = [str(n) for n in range(200)]
    await put(world, sent)
    handler = Script(copy)
    loop = loop_of(world, handler, unique)
    running = asyncio.create_task(loop.run())
    await eventually(lambda: len(handler.seen) >= 200 or running.done())
    loop.stop()
    await running
    assert Counter(handler.values) == Counter(sent)
    assert Counter(r.value.decode() for r in await world.records(world.target)) == Counter(sent)
    assert sum((await world.committed(unique)).values()) == 200


async def test_readers_without_a_group_find_what_is_there(world: StrictWorld, unique: str) -> None:
    assert await world.records("no.such.topic." + unique) == []
    await put(world, [str(n) for n in range(50)])
    assert len(await world.records(world.source)) == 50
    ends = await end_offsets(world.settings, [world.source])
    assert (len(ends), sum(ends.values())) == (PARTITIONS, 50)
    found = []
    async for record in read(world.settings, [world.source], follow=True):
        if record is None:
            await put(world, ["after"])
            continue
        found.append(record.value.decode())
        if len(found) == 51:
            break
    assert found[-1] == "after"


async def test_what_a_group_has_not_committed_is_its_lag(world: StrictWorld, unique: str) -> None:
    await put(world, [str(n) for n in range(30)])
    consumer = AIOKafkaConsumer(**client_options(world.settings), group_id=unique, enable_auto_commit=False)
    await consumer.start()
    try:
        assert len(await partitions_of(consumer, [world.source])) == PARTITIONS
        assert await measure(consumer, world.source, {}) == 30
        assert await measure(consumer, "no.such.topic." + unique, {}) == 0
    finally:
        await consumer.stop()
