"""What only shows when the broker or the handler misbehaves; the promises themselves are in the contract suite."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import REGISTRY

from libs.contracts import DeadLetter, claims, decode
from libs.errors import RetryError, StopError
from libs.streams.loop import StreamLoop
from libs.streams.memory import MemoryBroker, MemoryConsumer
from libs.streams.retry import Backoff
from libs.streams.types import Done, Handler, Held, Output, Partition, StreamRecord
from libs.streams.work import LoopOptions
from tests.eventually import eventually

TOPIC = "turns.matched"


class Handling:
    """A handler made of one function."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.seen: list[bytes] = []

    async def handle(self, record: StreamRecord) -> Done | Held:
        self.seen.append(record.value)
        result: Done | Held = await self.answer(record)
        return result

    async def tick(self) -> None:
        return None

    async def revoked(self, partitions: Collection[Partition]) -> None:
        return None


async def done(_record: StreamRecord) -> Done:
    return Done()


def loop_on(
    broker: MemoryBroker, handler: Handler, consumer: MemoryConsumer | None = None, **options: Any
) -> StreamLoop:
    fast = Backoff(base_seconds=0.001, max_seconds=0.01)
    given = {"commit_interval_seconds": 0.02, "tick_seconds": 0.02, "backoff": fast, "drain_seconds": 1.0} | options
    return StreamLoop(
        "unit", handler, consumer or broker.consumer([TOPIC], "g"), broker.producer(), LoopOptions(**given)
    )


@asynccontextmanager
async def running(loop: StreamLoop) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(loop.run())
    try:
        await eventually(lambda: loop.assigned.is_set() or task.done())
        yield task
    finally:
        loop.stop()
        await asyncio.gather(task, return_exceptions=True)


def fill(broker: MemoryBroker, count: int, key: str | None = "k") -> None:
    for number in range(count):
        broker.append(Output(TOPIC, key, b"%d" % number))


async def test_outputs_that_were_not_acknowledged_are_sent_again_and_the_handler_runs_once() -> None:
    broker = MemoryBroker()
    fill(broker, 1)

    async def produce(_record: StreamRecord) -> Done:
        broker.available = False
        return Done(outputs=(Output("turns.judged", "k", b"out"),))

    handler = Handling(produce)
    retries = REGISTRY.get_sample_value("clawback_retries_total", {"service": "unit", "reason": "produce"}) or 0.0

    def tried_again() -> bool:
        labels = {"service": "unit", "reason": "produce"}
        return (REGISTRY.get_sample_value("clawback_retries_total", labels) or 0.0) > retries + 3

    async with running(loop_on(broker, handler)):
        await eventually(tried_again)
        broker.available = True
        await eventually(lambda: sum(broker.committed("g").values()) == 1)
    assert len(broker.records("turns.judged")) == 1
    assert len(handler.seen) == 1


class Silent(MemoryConsumer):
    """Stops delivering without a word, as a wedged client does."""

    silent = False
    silent_polls = 0

    async def fetch(self, max_records: int, timeout_seconds: float) -> list[StreamRecord]:
        if self.silent:
            self.silent_polls += 1
            await asyncio.sleep(0.01)
            return []
        return await super().fetch(max_records, timeout_seconds)


async def test_a_consumer_that_gets_nothing_though_there_is_something_stops() -> None:
    broker = MemoryBroker()
    consumer = Silent(broker, [TOPIC], "g")
    consumer.silent = True
    fill(broker, 3)
    async with running(loop_on(broker, Handling(done), consumer, stall_seconds=0.3)) as task:
        with pytest.raises(StopError, match="although 3 wait") as raised:
            await asyncio.wait_for(asyncio.shield(task), 30)
    assert raised.value.reason == "stalled"


async def test_an_absent_broker_and_an_empty_topic_are_no_stall() -> None:
    broker = MemoryBroker()
    consumer = Silent(broker, [TOPIC], "g")
    handler = Handling(done)
    async with running(loop_on(broker, handler, consumer, stall_seconds=0.6)) as task:
        asked = 0

        async def unread() -> dict[Partition, int]:
            nonlocal asked
            asked += 1
            return await MemoryConsumer.unread(consumer)

        consumer.unread = unread  # type: ignore[method-assign]
        await eventually(lambda: asked > 8)  # empty, for twice the stall time
        del consumer.unread  # type: ignore[attr-defined]
        consumer.silent = True
        await eventually(lambda: consumer.silent_polls)
        fill(broker, 1)
        warned = 0

        async def away() -> dict[Partition, int]:
            nonlocal warned
            warned += 1
            raise RetryError("away", reason="test")

        consumer.unread = away  # type: ignore[method-assign]
        await eventually(lambda: warned > 8)
        assert not task.done()
        answers = 0

        async def back() -> dict[Partition, int]:
            nonlocal answers
            answers += 1
            if answers > 1:
                return await MemoryConsumer.unread(consumer)
            consumer.silent = False  # the broker's first word: there is something, and it is delivered from now on
            return {(TOPIC, 0): 1}

        consumer.unread = back  # type: ignore[method-assign]
        await eventually(lambda: handler.seen == [b"0"])
        assert answers >= 1
        assert not task.done()


async def test_a_full_loop_pauses_and_keeps_polling() -> None:
    broker = MemoryBroker()
    fill(broker, 5)
    polled_paused = 0

    class Watching(MemoryConsumer):
        async def fetch(self, max_records: int, timeout_seconds: float) -> list[StreamRecord]:
            nonlocal polled_paused
            polled_paused += self._paused
            return await super().fetch(max_records, timeout_seconds)

    go = asyncio.Event()

    async def wait(_record: StreamRecord) -> Done:
        await go.wait()
        return Done()

    handler = Handling(wait)
    async with running(loop_on(broker, handler, Watching(broker, [TOPIC], "g"), max_in_flight=2)):
        await eventually(lambda: polled_paused >= 2)
        assert len(handler.seen) == 2
        go.set()
        await eventually(lambda: len(handler.seen) == 5)


async def test_too_many_held_records_pause_until_a_tick_lets_them_go() -> None:
    broker = MemoryBroker(partitions=1)
    fill(broker, 12)
    held: list[StreamRecord] = []
    most = 0

    class Holding(Handling):
        async def handle(self, record: StreamRecord) -> Done | Held:
            nonlocal most
            self.seen.append(record.value)
            held.append(record)
            most = max(most, len(held))
            return Held()

        async def tick(self) -> Done | None:  # type: ignore[override]
            if len(held) < 4:
                return None
            let_go = Done(completes=tuple(held))
            held.clear()
            return let_go

    handler = Holding(done)
    async with running(loop_on(broker, handler, max_in_flight=2, max_held=4)):
        await eventually(lambda: sum(broker.committed("g").values()) == 12)
    assert most <= 5  # the bound, and what was in flight beside it


async def test_a_record_that_waits_for_its_next_try_is_given_up_at_once_on_stop() -> None:
    broker = MemoryBroker()
    fill(broker, 1)

    async def away(_record: StreamRecord) -> Done:
        raise RetryError("away", reason="test")

    handler = Handling(away)
    loop = loop_on(broker, handler, backoff=Backoff(base_seconds=3600.0, max_seconds=3600.0), drain_seconds=3600.0)
    async with running(loop):
        await eventually(lambda: handler.seen)
    assert broker.committed("g") == {}


async def test_a_refused_commit_is_made_again() -> None:
    broker = MemoryBroker()
    fill(broker, 3)
    refusals = 2

    class Refusing(MemoryConsumer):
        async def commit(self, positions: Mapping[Partition, int]) -> bool:
            nonlocal refusals
            if refusals:
                refusals -= 1
                raise RetryError("not now", reason="test")
            return await super().commit(positions)

    async with running(loop_on(broker, Handling(done), Refusing(broker, [TOPIC], "g"))):
        await eventually(lambda: sum(broker.committed("g").values()) == 3)
    assert refusals == 0


async def test_each_done_of_a_tick_stands_alone() -> None:
    broker = MemoryBroker(partitions=1, max_request_size=900)
    fill(broker, 2)
    held: list[StreamRecord] = []

    class Holding(Handling):
        async def handle(self, record: StreamRecord) -> Done | Held:
            held.append(record)
            return Held()

        async def tick(self) -> list[Done] | None:  # type: ignore[override]
            if len(held) < 2:
                return None
            sizes = (1000, 10)
            return [
                Done(outputs=(Output("turns.judged", "k", b"x" * size),), completes=(held.pop(0),)) for size in sizes
            ]

    async with running(loop_on(broker, Holding(done))):
        await eventually(lambda: sum(broker.committed("g").values()) == 2)
    assert len(broker.records("turns.judged")) == 1
    assert len(broker.records("dead.letters")) == 1


async def test_a_ticket_without_its_blob_is_set_aside_and_the_partition_goes_on(tmp_path: Path) -> None:
    broker, url = MemoryBroker(partitions=1), (tmp_path / "store").as_uri()
    lost, kept = (claims.store(value, url, TOPIC) for value in (b"lost", b"kept"))
    (tmp_path / "store" / decode_ticket(lost)).unlink()
    broker.append(Output(TOPIC, "k", lost))
    broker.append(Output(TOPIC, "k", kept))
    handler = Handling(done)
    async with running(loop_on(broker, handler, claims_url=url)):
        await eventually(lambda: sum(broker.committed("g").values()) == 2)
    assert handler.seen == [b"kept"]
    (letter,) = [decode(r.value, DeadLetter) for r in broker.records("dead.letters")]
    assert (letter.reason, letter.attempts) == ("claim_missing", 1)
    assert base64.b64decode(letter.value) == lost, "it can be sent again once the blob is restored"


async def test_a_store_that_is_away_keeps_its_records_waiting(tmp_path: Path) -> None:
    broker, url = MemoryBroker(partitions=1), (tmp_path / "store").as_uri()
    broker.append(Output(TOPIC, "k", claims.store(b"kept", url, TOPIC)))
    handler = Handling(done)
    retries = {"service": "unit", "reason": "claim_read"}
    before = REGISTRY.get_sample_value("clawback_retries_total", retries) or 0.0

    def tried(times: int) -> bool:
        return (REGISTRY.get_sample_value("clawback_retries_total", retries) or 0.0) >= before + times

    async with running(loop_on(broker, handler, claims_url="nosuchscheme://store")):
        await eventually(lambda: tried(8))
    assert (handler.seen, broker.records("dead.letters"), sum(broker.committed("g").values())) == ([], [], 0)


def decode_ticket(ticket: bytes) -> str:
    name: str = json.loads(ticket)["claim"]["name"]
    return name


async def test_a_failing_revoke_stops_the_service() -> None:
    broker = MemoryBroker()

    class Failing(Handling):
        async def revoked(self, partitions: Collection[Partition]) -> None:
            if partitions:
                raise KeyError("lost track")

    async with running(loop_on(broker, Failing(done))) as task:
        other = loop_on(broker, Handling(done))
        async with running(other):
            with pytest.raises(StopError, match="lost track"):
                await asyncio.wait_for(asyncio.shield(task), 30)
