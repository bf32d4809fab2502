"""A batch that fits no topic is set aside with its turns; sent again they are turns like any other."""

from __future__ import annotations

from libs.contracts import encode
from libs.streams.loop import StreamLoop
from libs.streams.memory import MemoryBroker
from libs.streams.types import Output
from libs.streams.work import LoopOptions
from tests.eventually import eventually
from tests.judged import judged
from tests.unit.batcher.test_handler import World
from tests.unit.streams.test_loop import running


async def test_turns_of_a_batch_that_was_too_large_can_be_sent_again() -> None:
    broker = MemoryBroker(partitions=1, max_request_size=10**6)
    world = World(batcher_batch_size=2)
    turns = [encode(judged(name, "homework")) for name in ("f1", "f2")]

    def send() -> None:
        for turn in turns:
            broker.append(Output("turns.judged", "k", turn))

    send()
    broker.max_request_size = len(turns[0]) + 10  # one turn, and hardly more
    options = LoopOptions(commit_interval_seconds=0.02, tick_seconds=0.02, drain_seconds=1.0)
    consumer = broker.consumer(["turns.judged"], "g")
    async with running(StreamLoop("batcher", world.handler, consumer, broker.producer(), options)):
        await eventually(lambda: len(broker.records("dead.letters")) == 2, within_seconds=10)
        broker.max_request_size = 10**6
        send()
        await eventually(lambda: broker.records("training.batches"), within_seconds=5)
    assert world.handler._flying == {}
