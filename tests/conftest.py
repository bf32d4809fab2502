"""Real processes for integration tests: one broker and one Redis for the whole run, clean names and keys per test.

KAFKA_BOOTSTRAP_SERVERS (an Apache Kafka) and REDIS_URL take the place of the local ones when they are set; with
KAFKA_HOME (an unpacked Apache Kafka, and Java) a Kafka is started here. Both run with the idempotent producer on. That
Redis database is flushed before each test that asks for it, so give it one of its own.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from libs.streams.config import ServiceSettings


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The bootstrap address of a Kafka-protocol broker."""
    given = os.environ.get("KAFKA_BOOTSTRAP_SERVERS")
    if given:
        yield given
        return
    from deploy.local import broker as tansu
    from deploy.local import kafka

    folder = tmp_path_factory.mktemp("broker")
    process, bootstrap = kafka.start(folder) if kafka.available() else tansu.start(folder / "broker.log")
    yield bootstrap
    process.stop(20.0)


@pytest.fixture(scope="session")
def strict_broker() -> Iterator[str]:
    """The bootstrap address of a second broker of another make (tests/strict_broker.py)."""
    command = [sys.executable, "-m", "tests.strict_broker"]
    with subprocess.Popen(command, cwd=Path(__file__).parents[1], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.kill()


@pytest.fixture(scope="session")
def _redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    given = os.environ.get("REDIS_URL")
    if given:
        yield given
        return
    from deploy.local import redis as local

    process, url = local.start(tmp_path_factory.mktemp("redis") / "redis.log")
    yield url
    process.stop(5.0)


@pytest.fixture
def redis_url(_redis_server: str) -> str:
    """The URL of a Redis database without keys."""
    from redis import Redis

    with Redis.from_url(_redis_server) as client:
        client.flushdb()
    return _redis_server


@pytest.fixture
def kafka_env(broker: str) -> dict[str, str]:
    """Environment variables that point a service at the broker, tuned for it."""
    from deploy.local.broker import CLIENT_ENV

    tuning = (
        {
            "CLAWBACK_KAFKA_FETCH_MAX_WAIT_MS": "20",
            "CLAWBACK_KAFKA_SESSION_TIMEOUT_MS": "6000",  # Apache Kafka's smallest
            "CLAWBACK_KAFKA_HEARTBEAT_INTERVAL_MS": "500",
        }
        if os.environ.get("KAFKA_BOOTSTRAP_SERVERS") or os.environ.get("KAFKA_HOME")
        else CLIENT_ENV
    )
    return {"CLAWBACK_KAFKA_BOOTSTRAP_SERVERS": broker, **tuning}


@pytest.fixture
def kafka_settings(kafka_env: dict[str, str]) -> ServiceSettings:
    """ServiceSettings for the broker. `ServiceSettings(**...)` of a service's own: pass kafka_env to its process."""
    return ServiceSettings(**{k.removeprefix("CLAWBACK_").lower(): v for k, v in kafka_env.items()})


@pytest.fixture
def unique() -> str:
    """A name that no other test uses, for groups, scenarios and topics."""
    return f"t{uuid.uuid4().hex[:12]}"


@pytest.fixture
def topic_suffix(kafka_settings: ServiceSettings, unique: str) -> str:
    """All seven topics exist as `<topic>.<suffix>`; returns ".<suffix>"."""
    from deploy.topics.create import create

    suffix = f".{unique}"
    with ThreadPoolExecutor(1) as pool:  # a test's own event loop may be running
        pool.submit(lambda: asyncio.run(create(kafka_settings, local=True, suffix=suffix))).result()
    return suffix


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty CLAWBACK_HOME."""
    monkeypatch.setenv("CLAWBACK_HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    return tmp_path / "home"
