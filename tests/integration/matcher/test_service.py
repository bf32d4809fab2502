"""The matcher as a process: traffic.raw in, turns.matched and exchanges.classified out, killed in the middle."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from deploy.local.process import Process, spawn
from deploy.local.stack import ROOT
from libs.contracts import ExchangeClassified, Record, TrafficRaw, TurnMatched, decode, encode
from libs.dialects import partition_key
from libs.streams.config import ServiceSettings
from libs.streams.follow import read
from libs.streams.producer import KafkaProducer
from libs.streams.types import Output
from tests.eventually import eventually
from tests.unit.matching.talk import World, said, user

pytestmark = pytest.mark.integration


def conversations(count: int, turns: int) -> list[TrafficRaw]:
    """`count` conversations of `turns` exchanges, interleaved."""
    w = World()
    histories = [[user(f"Opening of conversation {c}.")] for c in range(count)]
    for turn in range(turns):
        for c, history in enumerate(histories):
            reply = f"Reply {turn} of conversation {c}, as long as it has to be."
            w.exchange(history, reply, match=False)
            history += [said(reply), user(f"Question {turn} of {c}?")]
    return w.records


class Matchers:
    """Matcher processes on one set of topics."""

    def __init__(self, settings: ServiceSettings, env: dict[str, str], suffix: str, home: Path) -> None:
        self.settings, self.env, self.suffix, self.home = settings, env, suffix, home
        self.running: list[Process] = []

    def start(self) -> Process:
        argv = [sys.executable, "-m", "services.matcher"]
        process = spawn("matcher", argv, self.home / f"matcher-{len(self.running)}.log", self.env, ROOT)
        self.running.append(process)
        return process

    async def send(self, records: Sequence[TrafficRaw]) -> None:
        producer = KafkaProducer(self.settings)
        left: Sequence[Output] = [Output(f"traffic.raw{self.suffix}", partition_key(r), encode(r)) for r in records]
        while left:
            left = await producer.send_all(left)
        await producer.stop()

    async def produced(self, topic: str, kind: type[Record]) -> list[Record]:
        found = [r async for r in read(self.settings, [f"{topic}{self.suffix}"]) if r is not None]
        return [decode(r.value, kind) for r in found]


@pytest.fixture
def matchers(
    kafka_settings: ServiceSettings, kafka_env: dict[str, str], redis_url: str, topic_suffix: str, tmp_path: Path
) -> Iterator[Matchers]:
    env = {
        **kafka_env,
        "CLAWBACK_REDIS_URL": redis_url,
        "CLAWBACK_STREAM_INPUT_SUFFIX": topic_suffix,
        "CLAWBACK_STREAM_OUTPUT_SUFFIX": topic_suffix,
        "CLAWBACK_STREAM_GROUP": f"matcher{topic_suffix}",
        "PYTHONPATH": str(ROOT),
    }
    made = Matchers(kafka_settings, env, topic_suffix, tmp_path)
    yield made
    for process in made.running:
        process.stop(10.0)


async def test_every_turn_is_matched_though_the_matcher_is_killed(matchers: Matchers) -> None:
    """kill -9 in the middle of the stream: none is lost, and what came twice is the same."""
    records = conversations(count=20, turns=10)
    want = {(a.exchange_id, b.exchange_id) for a, b in zip(records, records[20:], strict=False)}
    await matchers.send(records)
    first = matchers.start()

    async def some() -> bool:
        return len(await matchers.produced("turns.matched", TurnMatched)) >= 10

    await eventually(some, why="the matcher has begun")
    first.signal(signal.SIGKILL)
    matchers.start()

    async def all_lines() -> bool:
        lines = await matchers.produced("exchanges.classified", ExchangeClassified)
        return len({getattr(r, "exchange_id", "") for r in lines}) == len(records)

    await eventually(all_lines, within_seconds=90, why="every exchange is classified")
    bound: dict[tuple[str, str], set[str]] = {}
    for record in await matchers.produced("turns.matched", TurnMatched):
        assert isinstance(record, TurnMatched)
        line = json.loads(encode(record))
        bound.setdefault((record.turn_id, record.answered_by), set()).add(json.dumps(line, sort_keys=True))
    assert set(bound) == want
    assert all(len(copies) == 1 for copies in bound.values())


async def test_a_record_that_is_none_is_dead_lettered_and_the_rest_goes_on(matchers: Matchers) -> None:
    from libs.contracts import DeadLetter

    records = conversations(count=1, turns=2)
    producer = KafkaProducer(matchers.settings)
    left: Sequence[Output] = [Output(f"traffic.raw{matchers.suffix}", None, b'{"exchange_id": 7}')]
    while left:
        left = await producer.send_all(left)
    await producer.stop()
    await matchers.send(records)
    matchers.start()

    async def done() -> bool:
        lines = await matchers.produced("exchanges.classified", ExchangeClassified)
        dead = await matchers.produced("dead.letters", DeadLetter)
        return len(lines) == 2 and len(dead) == 1

    await eventually(done, why="two exchanges and one dead letter")
