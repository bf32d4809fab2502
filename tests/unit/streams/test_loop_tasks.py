"""Tasks of the loop that end otherwise than planned: cancelled, late, or with an error that nobody foresaw."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from libs.errors import StopError
from libs.streams.loop import StreamLoop
from libs.streams.memory import MemoryBroker, MemoryProducer
from libs.streams.types import Done, Output, StreamRecord
from libs.streams.work import LoopOptions
from tests.eventually import eventually
from tests.unit.streams.test_loop import TOPIC, Handling, done, fill, loop_on, running


class Stuck(MemoryProducer):
    """Takes what it is given and acknowledges nothing until `going`."""

    def __init__(self, broker: MemoryBroker) -> None:
        super().__init__(broker)
        self.asked, self.going = 0, asyncio.Event()

    async def send_all(self, outputs: Sequence[Output]) -> list[Output]:
        self.asked += 1
        await self.going.wait()
        return await super().send_all(outputs)


class Ticking(Handling):
    """Each tick sends one record."""

    ticks = 0

    async def tick(self) -> Done:  # type: ignore[override]
        self.ticks += 1
        return Done(outputs=(Output("turns.judged", "k", b"%d" % self.ticks),))


def loop_with(producer: MemoryProducer, broker: MemoryBroker, handler: Handling, **options: Any) -> StreamLoop:
    given: dict[str, Any] = {"commit_interval_seconds": 0.02, "tick_seconds": 0.02, "drain_seconds": 0.1} | options
    return StreamLoop("unit", handler, broker.consumer([TOPIC], "g"), producer, LoopOptions(**given))


async def test_ticks_go_on_after_a_rebalance_that_found_one_late() -> None:
    broker = MemoryBroker()
    producer, handler = Stuck(broker), Ticking(done)
    async with running(loop_with(producer, broker, handler)):
        await eventually(lambda: producer.asked)
        async with running(loop_on(broker, Handling(done))):  # a second member: the stuck tick is late for it
            producer.going.set()
            before = handler.ticks
            await eventually(lambda: handler.ticks > before + 2, within_seconds=5)


async def test_a_stop_lets_a_tick_finish_what_it_began() -> None:
    broker = MemoryBroker()
    producer, handler = Stuck(broker), Ticking(done)
    written: list[int] = []

    async def tick() -> Done | None:
        if handler.ticks:
            return None
        handler.ticks += 1

        async def write() -> None:
            written.append(1)

        return Done(outputs=(Output("turns.judged", "k", b"1"),), finalize=write)

    handler.tick = tick  # type: ignore[method-assign, assignment]
    loop = loop_with(producer, broker, handler, drain_seconds=5.0)
    async with running(loop) as task:
        await eventually(lambda: producer.asked)
        loop.stop()
        await asyncio.sleep(0.05)
        producer.going.set()
        await task
    assert written == [1]


class Broken(MemoryProducer):
    async def send_all(self, outputs: Sequence[Output]) -> list[Output]:
        raise AssertionError("unforeseen")


@pytest.mark.parametrize("by_tick", [False, True])
async def test_an_unforeseen_error_while_producing_stops_the_loop(by_tick: bool) -> None:
    broker = MemoryBroker()
    fill(broker, 1)

    async def produce(_record: StreamRecord) -> Done:
        return Done(outputs=(Output("turns.judged", "k", b"out"),))

    handler = Ticking(done) if by_tick else Handling(produce)
    async with running(loop_with(Broken(broker), broker, handler)) as task:
        with pytest.raises(StopError, match="unforeseen"):
            await asyncio.wait_for(asyncio.shield(task), 5)
