"""A service as a process of its own on a real broker: killed, joined, stopped, poisoned, cut off."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from deploy.local import broker as local_broker
from deploy.local.process import Process, free_port, spawn
from deploy.local.stack import ROOT, readiness
from libs.contracts import DeadLetter, decode
from libs.streams.config import ServiceSettings
from tests.eventually import eventually
from tests.integration.streams.worlds import KafkaWorld, put

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]


class Service:
    """One copier process."""

    def __init__(self, process: Process, url: str) -> None:
        self.process = process
        self.url = url

    async def ready(self) -> None:
        await eventually(lambda: asyncio.to_thread(lambda: readiness(self.url)[0]), within_seconds=90, why="ready")

    async def exit_status(self) -> int:
        """Wait for its end."""
        await eventually(lambda: not self.process.alive(), why="ended")
        return os.waitstatus_to_exitcode((await asyncio.to_thread(os.waitpid, self.process.pid, 0))[1])

    def metric(self, line: str) -> float:
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=10) as answer:
            found = [text for text in answer.read().decode().splitlines() if text.startswith(line)]
        return sum(float(text.rsplit(" ", 1)[1]) for text in found)


Start = Callable[..., Service]


@pytest.fixture
def start(tmp_path: Path, kafka_env: dict[str, str], unique: str) -> Iterator[Start]:
    """Start copiers of one group; what still runs at the end is killed."""
    running: list[Process] = []

    def start_one(**env: str) -> Service:
        port = free_port()
        own = kafka_env | {
            "CLAWBACK_HTTP_PORT": str(port),
            "CLAWBACK_STREAM_INPUT_SUFFIX": f".{unique}",
            "CLAWBACK_STREAM_OUTPUT_SUFFIX": f".{unique}",
            "CLAWBACK_STREAM_MAX_IN_FLIGHT": "16",
            "CLAWBACK_STREAM_COMMIT_INTERVAL_SECONDS": "0.2",
            "CLAWBACK_STREAM_DRAIN_SECONDS": "5",
            "CLAWBACK_STREAM_GROUP": unique,
        }
        argv = [sys.executable, "-m", "tests.integration.streams.copier", f"copier{len(running)}"]
        log = tmp_path / f"copier{len(running)}.log"
        process = spawn(f"copier{len(running)}", argv, log, dict(os.environ) | own | env, ROOT)
        running.append(process)
        return Service(process, f"http://127.0.0.1:{port}")

    yield start_one
    for process in running:
        process.signal(signal.SIGKILL)


@pytest.fixture
async def world(kafka_settings: ServiceSettings, unique: str) -> KafkaWorld:
    return await KafkaWorld(kafka_settings, unique).open()


async def copied(world: KafkaWorld) -> Counter[str]:
    return Counter(record.value.decode() for record in await world.records(world.target))


async def at_least(world: KafkaWorld, count: int) -> Counter[str]:
    """Wait until that many different records have been copied."""
    found: Counter[str] = Counter()

    async def enough() -> bool:
        nonlocal found
        found = await copied(world)
        return len(found) >= count

    await eventually(enough, within_seconds=120, why=f"{count} copied, {len(found)} so far")
    return found


async def test_kill_9_with_records_in_flight_loses_nothing(world: KafkaWorld, start: Start) -> None:
    sent = [f"r{n}" for n in range(3000)]
    feeding = asyncio.create_task(feed(world, sent))
    for killed_at in (300, 900, 1800):
        service = start()
        await at_least(world, killed_at)
        service.process.signal(signal.SIGKILL)
    start()
    await feeding
    found = await at_least(world, len(sent))
    assert set(found) == set(sent)


async def feed(world: KafkaWorld, values: list[str]) -> None:
    for begin in range(0, len(values), 100):
        await put(world, values[begin : begin + 100])


async def test_consumers_join_and_leave_under_load(world: KafkaWorld, start: Start) -> None:
    sent = [f"r{n}" for n in range(4000)]
    feeding = asyncio.create_task(feed(world, sent))
    one = start()
    await at_least(world, 200)
    two = start()
    await two.ready()
    one.process.signal(signal.SIGTERM)
    assert await one.exit_status() == 0
    three = start()
    await feeding
    await three.ready()
    found = await at_least(world, len(sent))
    assert set(found) == set(sent)
    # Nobody was killed: what was in flight was finished and committed before it was handed over.
    assert {value: count for value, count in found.items() if count > 1} == {}


async def test_poison_is_set_aside_and_the_service_lives(world: KafkaWorld, start: Start) -> None:
    await put(world, ["a", "poison-1", "b", "poison-2", "c"])
    service = start()
    await service.ready()
    assert set(await at_least(world, 3)) == {"a", "b", "c"}

    async def both() -> list[DeadLetter] | None:
        found = [decode(record.value, DeadLetter) for record in await world.records(world.dead)]
        return found if len(found) == 2 else None

    letters = await eventually(both)
    assert {letter.reason for letter in letters} == {"contract"}
    assert service.metric('clawback_dead_letters_total{reason="contract"') == 2
    service.process.signal(signal.SIGTERM)
    assert await service.exit_status() == 0


async def test_a_flood_of_poison_ends_the_service_with_status_1(world: KafkaWorld, start: Start) -> None:
    await put(world, [f"poison-{n}" for n in range(40)])
    service = start(CLAWBACK_STREAM_DEAD_LETTERS_IN_A_ROW="5")
    assert await service.exit_status() == 1
    assert "records in a row were dead-lettered" in service.process.tail()


async def test_a_wrong_setting_is_named(start: Start) -> None:
    service = start(CLAWBACK_STREAM_MAX_IN_FLIGHT="none")
    assert await service.exit_status() != 0
    assert "CLAWBACK_STREAM_MAX_IN_FLIGHT" in service.process.tail(40)


async def test_a_service_waits_for_its_broker_and_survives_its_absence(
    tmp_path: Path, start: Start, unique: str
) -> None:
    port = free_port()
    address = f"127.0.0.1:{port}"
    service = start(CLAWBACK_KAFKA_BOOTSTRAP_SERVERS=address, **local_broker.CLIENT_ENV)
    await eventually(lambda: asyncio.to_thread(lambda: "assigned" in readiness(service.url)[1]), why="HTTP answers")
    assert not readiness(service.url)[0]
    broker, _ = local_broker.start(tmp_path / "broker.log", port)
    try:
        settings = ServiceSettings(
            **{k.removeprefix("CLAWBACK_").lower(): v for k, v in local_broker.CLIENT_ENV.items()},  # type: ignore[arg-type]
            kafka_bootstrap_servers=address,
        )
        world = await KafkaWorld(settings, unique).open()
        await service.ready()
        await put(world, [f"a{n}" for n in range(500)])
        await at_least(world, 100)
        broker.signal(signal.SIGSTOP)
        await eventually(
            lambda: asyncio.to_thread(lambda: not readiness(service.url, 20)[0]), why="readiness tells of the broker"
        )
        broker.signal(signal.SIGCONT)
        await put(world, [f"b{n}" for n in range(500)])
        found = await at_least(world, 1000)
        assert set(found) == {f"{letter}{n}" for letter in "ab" for n in range(500)}
        assert service.process.alive()
    finally:
        broker.stop(5.0)
