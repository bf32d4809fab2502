"""The batcher as a process on a real broker and Redis: nothing is lost, and repeats are dropped."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from msgspec import structs

from deploy.local.process import Process, free_port, spawn
from deploy.local.stack import ROOT
from libs.contracts import PolicyRelease, TrainingBatch, decode, encode
from libs.streams.config import ServiceSettings
from libs.streams.follow import read
from libs.streams.producer import KafkaProducer
from libs.streams.types import Output
from tests.eventually import eventually
from tests.judged import EXAMPLES, judged

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

Start = Callable[[], Process]


@pytest.fixture
def start(tmp_path: Path, kafka_env: dict[str, str], redis_url: str, topic_suffix: str, unique: str) -> Iterator[Start]:
    running: list[Process] = []

    def start_one() -> Process:
        env = kafka_env | {
            "CLAWBACK_HTTP_PORT": str(free_port()),
            "CLAWBACK_REDIS_URL": redis_url,
            "CLAWBACK_STREAM_INPUT_SUFFIX": topic_suffix,
            "CLAWBACK_STREAM_OUTPUT_SUFFIX": topic_suffix,
            "CLAWBACK_STREAM_GROUP": unique,
            "CLAWBACK_STREAM_COMMIT_INTERVAL_SECONDS": "0.1",
            "CLAWBACK_BATCHER_BATCH_SIZE": "4",
            "CLAWBACK_BATCHER_MAX_AGE_SECONDS": "3",
        }
        name = f"batcher{len(running)}"
        process = spawn(
            name, [sys.executable, "-m", "services.batcher"], tmp_path / f"{name}.log", dict(os.environ) | env, ROOT
        )
        running.append(process)
        return process

    yield start_one
    for process in running:
        process.signal(signal.SIGKILL)


async def produce(settings: ServiceSettings, outputs: list[Output]) -> None:
    producer = KafkaProducer(settings)
    left = outputs
    while left:
        left = await producer.send_all(left)
    await producer.stop()


def turns(suffix: str, feedback_ids: list[str]) -> list[Output]:
    """Judged turns of seven scenarios, each feedback id always in the same one."""
    made = []
    for feedback_id in feedback_ids:
        scenario = f"s{int(feedback_id[1:]) % 7}"
        made.append(Output(f"turns.judged{suffix}", scenario, encode(judged(feedback_id, scenario))))
    return made


async def batches(settings: ServiceSettings, suffix: str) -> list[TrainingBatch]:
    topic = f"training.batches{suffix}"
    return [decode(r.value, TrainingBatch) async for r in read(settings, [topic]) if r is not None]


async def batched(settings: ServiceSettings, suffix: str) -> Counter[str]:
    return Counter(s.feedback_id for b in await batches(settings, suffix) for s in b.samples)


async def until_batched(settings: ServiceSettings, suffix: str, count: int) -> Counter[str]:
    async def enough() -> Counter[str] | None:
        found = await batched(settings, suffix)
        return found if len(found) >= count else None

    found: Counter[str] = await eventually(enough, within_seconds=120, why=f"{count} turns batched")
    return found


async def test_kill_9_again_and_again_loses_no_turn(
    start: Start, kafka_settings: ServiceSettings, topic_suffix: str
) -> None:
    sent = [f"f{n}" for n in range(1200)]
    feeding = asyncio.create_task(feed(kafka_settings, topic_suffix, sent))
    for count in (100, 400, 800):
        process = start()
        await until_batched(kafka_settings, topic_suffix, count)
        process.signal(signal.SIGKILL)
    start()
    await feeding
    found = await until_batched(kafka_settings, topic_suffix, len(sent))
    assert set(found) == set(sent)
    for batch in await batches(kafka_settings, topic_suffix):
        assert {f"s{int(s.feedback_id[1:]) % 7}" for s in batch.samples} == {batch.scenario}
        assert 1 <= len(batch.samples) <= 4
        assert len({s.feedback_id for s in batch.samples}) == len(batch.samples)


async def feed(settings: ServiceSettings, suffix: str, feedback_ids: list[str]) -> None:
    for begin in range(0, len(feedback_ids), 60):
        await produce(settings, turns(suffix, feedback_ids[begin : begin + 60]))


async def test_everything_delivered_twice_is_batched_once(
    start: Start, kafka_settings: ServiceSettings, topic_suffix: str
) -> None:
    sent = [f"f{n}" for n in range(100)]
    await produce(kafka_settings, turns(topic_suffix, sent))
    first = start()
    await until_batched(kafka_settings, topic_suffix, 100)
    first.signal(signal.SIGTERM)
    await eventually(lambda: not first.alive())
    await produce(kafka_settings, turns(topic_suffix, [*sent, "f777"]))
    start()
    found = await until_batched(kafka_settings, topic_suffix, 101)
    assert found == Counter([*sent, "f777"])


async def test_the_serving_release_is_read_and_stale_turns_are_dropped(
    start: Start, kafka_settings: ServiceSettings, topic_suffix: str
) -> None:
    event = decode((EXAMPLES / "policy.releases/v1/released.json").read_bytes(), PolicyRelease)
    names = ["base", *(f"s1@{n:05d}-0badc0de" for n in range(1, 7))]  # more than the bound of 4 behind the last one
    chain = [
        structs.replace(event, scenario="s1", release_id=own, parent_id=parent, serving=own, number=n)
        for n, (parent, own) in enumerate(pairwise(names), 1)
    ]
    await produce(kafka_settings, [Output(f"policy.releases{topic_suffix}", "s1", encode(e)) for e in chain])
    stale = encode(judged("f1", "s1", release_id="base"))
    fresh = encode(judged("f8", "s1", release_id=names[-2]))
    topic = f"turns.judged{topic_suffix}"
    await produce(kafka_settings, [Output(topic, "s1", stale), Output(topic, "s1", fresh)])
    start()
    assert set(await until_batched(kafka_settings, topic_suffix, 1)) == {"f8"}
