"""A rebalance at the loop's worst moment: aiokafka's getmany then waits for the assignment, whatever its time."""

from __future__ import annotations

import asyncio
from typing import Any

from libs.streams.config import ServiceSettings
from libs.streams.consumer import KafkaConsumer
from libs.streams.loop import StreamLoop
from libs.streams.memory import MemoryBroker
from tests.eventually import eventually
from tests.unit.streams.test_loop import TOPIC, Handling, done


class Client:
    """As AIOKafkaConsumer: while partitions are dealt out anew, getmany waits until they are."""

    def __init__(self) -> None:
        self.assigned = asyncio.Event()
        self.assigned.set()
        self.asked = 0

    async def getmany(self, timeout_ms: int, max_records: int) -> dict[Any, Any]:
        self.asked += 1
        await self.assigned.wait()
        await asyncio.sleep(0.01)
        return {}

    def assignment(self) -> set[Any]:
        return set()


async def test_a_fetch_that_waits_for_its_turn_does_not_shut_a_revoke_out() -> None:
    consumer = KafkaConsumer(ServiceSettings(), [TOPIC], "g")
    client: Any = Client()
    loop = StreamLoop("unit", Handling(done), consumer, MemoryBroker().producer())
    consumer._client, consumer._listener = client, loop
    await loop._gate.acquire()  # a tick decides
    fetching = asyncio.create_task(loop._fetching())
    await asyncio.sleep(0.05)
    assert client.asked == 0
    client.assigned.clear()  # the rebalance begins, and the fetch is already in line
    revoking = asyncio.create_task(consumer.on_partitions_revoked(set()))
    await asyncio.sleep(0.05)
    loop._gate.release()
    try:
        await asyncio.wait_for(asyncio.shield(revoking), 2)
        client.assigned.set()
        await consumer.on_partitions_assigned(set())
        before = client.asked
        await eventually(lambda: client.asked > before + 2, within_seconds=2)
    finally:
        for task in (fetching, revoking):
            task.cancel()
        await asyncio.gather(fetching, revoking, return_exceptions=True)
