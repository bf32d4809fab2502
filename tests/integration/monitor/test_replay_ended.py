"""A replay that is ended: its stage stops with it, its Redis database is empty, and the next replay runs."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from aiokafka import AIOKafkaProducer
from redis import Redis as SyncRedis
from redis.asyncio import Redis

from deploy.local.process import Process, spawn
from libs.cli.replaying import ROOT, _own_database, _Owner, side_database
from libs.contracts import encode
from libs.errors import ConfigError
from libs.streams.config import ServiceSettings
from tests.eventually import eventually
from tests.monitor_records import Talk

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]


@pytest.fixture
async def side(redis_url: str) -> AsyncIterator[Redis]:
    """The replay's own database."""
    async with Redis.from_url(side_database(redis_url)) as redis:
        await redis.flushdb()
        yield redis
        await redis.flushdb()


@pytest.fixture
async def env(kafka_env: dict[str, str], topic_suffix: str, redis_url: str, home: Path) -> dict[str, str]:
    """What the command needs, and one record for it to read."""
    found = kafka_env | {"CLAWBACK_STREAM_INPUT_SUFFIX": topic_suffix, "CLAWBACK_REDIS_URL": redis_url}
    settings = ServiceSettings(**{k.removeprefix("CLAWBACK_").lower(): v for k, v in found.items()})
    producer = AIOKafkaProducer(bootstrap_servers=settings.kafka_bootstrap_servers)
    await producer.start()
    raw = Talk("s", ["Explain tides."], 1.7e9).raw(0)
    await producer.send_and_wait(settings.input_topic("traffic.raw"), key=b"k", value=encode(raw))
    await producer.stop()
    return dict(os.environ) | found | {"CLAWBACK_HOME": str(home)}


def replay(env: dict[str, str], name: str, home: Path, *more: str) -> Process:
    name += env["CLAWBACK_STREAM_INPUT_SUFFIX"]
    argv = [sys.executable, "-m", "libs.cli", "replay", "matcher", "--name", name, "--timeout", "90", *more]
    return spawn("replay", argv, home / f"{name}.out", env, cwd=ROOT)


async def stage_of(url: str) -> Process:
    """The stage's process, once the replay has started it."""
    found: list[Process] = []

    def named() -> bool:
        with SyncRedis.from_url(url) as redis:
            raw = redis.get(_own_database.MARK)
        found[:] = msgspec.json.decode(raw, type=_Owner).processes()[1:] if isinstance(raw, bytes) else []
        return bool(found)

    await eventually(named)
    return found[0]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
async def test_a_signal_ends_the_stage_too(
    number: int, env: dict[str, str], side: Redis, redis_url: str, home: Path
) -> None:
    process = replay(env, f"ended-{int(number)}", home)
    stage = await stage_of(side_database(redis_url))
    process.signal(number)
    process.signal(number)  # in a hurry: the clean-up goes on
    assert await asyncio.to_thread(os.waitpid, process.pid, 0) == (process.pid, (128 + number) << 8), process.tail()
    assert not stage.alive()
    assert await side.dbsize() == 0
    assert "interrupted: the stage is stopped" in process.tail()


async def test_what_a_killed_replay_left_is_taken_away(
    env: dict[str, str], side: Redis, redis_url: str, home: Path
) -> None:
    process = replay(env, "killed", home)
    stage = await stage_of(side_database(redis_url))
    busy = replay(env, "beside", home)
    assert os.waitstatus_to_exitcode((await asyncio.to_thread(os.waitpid, busy.pid, 0))[1]) == 1
    assert f"another replay (pid {process.pid}) uses" in busy.tail()
    stage.signal(signal.SIGSTOP)  # the killed one leaves it behind at work
    process.signal(signal.SIGKILL)
    await eventually(lambda: not process.alive())
    process.reap()
    assert stage.alive() and await side.dbsize()
    again = replay(env, "again", home)
    assert os.waitstatus_to_exitcode((await asyncio.to_thread(os.waitpid, again.pid, 0))[1]) == 0, again.tail()
    assert "matcher read 1 records again" in again.tail()
    assert not stage.alive() and await side.dbsize() == 0


async def test_what_no_replay_wrote_stays(side: Redis, redis_url: str) -> None:
    url = side_database(redis_url)
    foreign = _Owner("another-host", (1, 0.0))
    for mark in (None, b"mine", msgspec.json.encode(foreign)):
        await side.flushdb()
        await side.set("somebody", "else")
        if mark is not None:
            await side.set(_own_database.MARK, mark)
        with pytest.raises(ConfigError, match="is not empty"):
            async with _own_database(url):
                pytest.fail("entered")
        assert await side.get("somebody") == b"else"


async def test_the_live_database_is_refused(env: dict[str, str], redis_url: str, home: Path) -> None:
    process = replay(env, "live", home, "--redis-url", redis_url)
    assert os.waitstatus_to_exitcode((await asyncio.to_thread(os.waitpid, process.pid, 0))[1]) == 1
    assert "--redis-url is the live database" in process.tail()
