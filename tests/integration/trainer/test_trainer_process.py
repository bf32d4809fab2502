"""The trainer as a process on a real broker: every batch ends in one event, killed or not; a rollback is obeyed."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from deploy.local.process import Process, free_port, spawn
from deploy.local.stack import ROOT
from libs.contracts import PolicyRelease, TrainingBatch, decode, encode
from libs.contracts.release_chain import Chain, fold, rollback
from libs.streams.config import ServiceSettings
from libs.streams.follow import read
from libs.streams.producer import KafkaProducer
from libs.streams.types import Output
from tests.eventually import eventually
from tests.tiny_model import batch, sample, write_model

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]

Start = Callable[[], Process]


@pytest.fixture
def env(tmp_path: Path, kafka_env: dict[str, str], topic_suffix: str, unique: str) -> dict[str, str]:
    return kafka_env | {
        "CLAWBACK_HOME": str(tmp_path / "home"),
        "CLAWBACK_HTTP_PORT": str(free_port()),
        "CLAWBACK_STREAM_INPUT_SUFFIX": topic_suffix,
        "CLAWBACK_STREAM_OUTPUT_SUFFIX": topic_suffix,
        "CLAWBACK_STREAM_GROUP": unique,
        "CLAWBACK_STREAM_COMMIT_INTERVAL_SECONDS": "0.1",
        "CLAWBACK_TRAINER_MODEL": str(write_model(tmp_path / "model")),
        "CLAWBACK_TRAINER_LORA_RANK": "4",
        "CLAWBACK_TRAINER_THREADS": "1",
        "CLAWBACK_TRAINER_MAX_STALENESS": "50",
    }


@pytest.fixture
def start(tmp_path: Path, env: dict[str, str]) -> Iterator[Start]:
    running: list[Process] = []

    def start_one() -> Process:
        name = f"trainer{len(running)}"
        command = [sys.executable, "-m", "services.trainer"]
        running.append(spawn(name, command, tmp_path / f"{name}.log", dict(os.environ) | env, ROOT))
        return running[-1]

    yield start_one
    for process in running:
        process.signal(signal.SIGKILL)


async def produce(settings: ServiceSettings, outputs: list[Output]) -> None:
    producer = KafkaProducer(settings)
    left = outputs
    while left:
        left = await producer.send_all(left)
    await producer.stop()


async def events(settings: ServiceSettings, suffix: str) -> list[PolicyRelease]:
    topic = f"policy.releases{suffix}"
    return [decode(r.value, PolicyRelease) async for r in read(settings, [topic]) if r is not None]


async def until_events(settings: ServiceSettings, suffix: str, count: int) -> dict[str, PolicyRelease]:
    """Wait until `count` batches have their event; no batch may have two that differ."""

    async def enough() -> dict[str, PolicyRelease] | None:
        found: dict[str, PolicyRelease] = {}
        for event in await events(settings, suffix):
            if event.batch_id:
                assert found.setdefault(event.batch_id, event) == event
        return found if len(found) >= count else None

    found: dict[str, PolicyRelease] = await eventually(enough, within_seconds=180, why=f"{count} batches with an event")
    return found


def outputs(suffix: str, batches: list[TrainingBatch]) -> list[Output]:
    return [Output(f"training.batches{suffix}", b.scenario, encode(b)) for b in batches]


async def test_killed_in_the_middle_no_batch_is_lost_and_none_trained_twice(
    start: Start, kafka_settings: ServiceSettings, topic_suffix: str, env: dict[str, str]
) -> None:
    made = [
        batch(f"{name}-{i}", sample(f"{name}{i}", seed=i, reply=f"- {name} {i}"), scenario=name)
        for i in range(6)
        for name in ("anna", "ben")
    ]
    process = start()
    await produce(kafka_settings, outputs(topic_suffix, made[:8]))
    await until_events(kafka_settings, topic_suffix, 3)
    process.signal(signal.SIGKILL)
    await produce(kafka_settings, outputs(topic_suffix, made[8:]))
    process = start()
    found = await until_events(kafka_settings, topic_suffix, len(made))
    assert sorted(found) == sorted(b.batch_id for b in made)
    for name in ("anna", "ben"):
        mine = [e for e in found.values() if e.scenario == name]
        assert sorted(i for e in mine for i in e.trained) == sorted(f"{name}{i}" for i in range(6))
        assert sorted(e.number for e in mine) == list(range(1, 7))
        assert {e.event for e in mine} == {"released"}
        # Within a scenario the chain is unbroken: each release starts from the one before.
        by_number = sorted(mine, key=lambda e: e.number)
        assert [e.parent_id for e in by_number] == ["base", *(e.release_id for e in by_number[:-1])]
        chain = Chain(scenario=name)
        for event in by_number:
            chain = fold(chain, event)
        if name == "anna":
            back = rollback(chain, None, now=1.0)
            await produce(kafka_settings, [Output(f"policy.releases{topic_suffix}", name, encode(back))])
            after = batch("anna-7", sample("anna7", release_id=back.serving), scenario=name)

            async def obeyed() -> bool:
                page = await asyncio.to_thread(metrics, env)
                return 'clawback_trainer_commands_total{command="rolled_back"} 1.0' in page

            await eventually(obeyed, within_seconds=60, why="the trainer applies the rollback")
            await produce(kafka_settings, outputs(topic_suffix, [after]))
            seen = await until_events(kafka_settings, topic_suffix, len(made) + 1)
            assert seen["anna-7"].parent_id == back.serving
    page = await asyncio.to_thread(metrics, env)
    assert "clawback_trainer_batches_total" in page and "clawback_trainer_step_seconds_count" in page
    assert await asyncio.to_thread(process.stop, 60.0), "SIGTERM ends it within a minute"


def metrics(env: dict[str, str]) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{env['CLAWBACK_HTTP_PORT']}/metrics", timeout=10) as page:
        text: str = page.read().decode()
    return text


async def test_a_mistyped_setting_ends_the_start_with_its_name(tmp_path: Path, env: dict[str, str]) -> None:
    wrong = dict(os.environ) | env | {"CLAWBACK_TRAINER_KL_COEFF": "0.5"}
    log = tmp_path / "wrong.log"
    process = spawn("wrong", [sys.executable, "-m", "services.trainer"], log, wrong, ROOT)
    await eventually(lambda: not process.alive(), within_seconds=60, why="it ends")
    assert "CLAWBACK_TRAINER_KL_COEFF: no such setting" in process.tail()
