"""Run one stage again over the log, beside the live one: own consumer group, own output topics, own Redis database."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import threading
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit, urlunsplit

import click
import msgspec
import psutil
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import CommitFailedError
from prometheus_client.parser import text_string_to_metric_families
from redis.asyncio import Redis

from deploy.local.process import Process, free_port, spawn
from deploy.topics.create import create
from libs.cli.connect import get_text
from libs.cli.say import say
from libs.errors import ConfigError
from libs.streams.client import client_options
from libs.streams.config import ServiceSettings
from libs.streams.follow import end_offsets
from libs.streams.forgotten import OUTCOME
from libs.streams.types import Partition

ROOT = Path(__file__).resolve().parents[2]
T = TypeVar("T")
# What a replay sets itself: its own group, topics and Redis keep it beside the live stage.
OWN = frozenset(
    f"CLAWBACK_{name}"
    for name in (
        *("KAFKA_BOOTSTRAP_SERVERS", "KAFKA_IDEMPOTENT_PRODUCER", "KAFKA_FETCH_MAX_WAIT_MS", "REDIS_URL"),
        *("STREAM_GROUP", "STREAM_OUTPUT_SUFFIX", "HTTP_HOST", "HTTP_PORT"),
    )
)


@dataclass(frozen=True, slots=True)
class Stage:
    """What a stage reads under its group, and what it writes."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


STAGES = {
    "matcher": Stage(("traffic.raw",), ("turns.matched", "exchanges.classified")),
    "judge": Stage(("turns.matched",), ("turns.judged",)),
    "batcher": Stage(("turns.judged",), ("training.batches",)),
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a replay read, how many of these it left out because their person is forgotten, what it wrote by topic."""

    read: int
    forgotten: int
    written: dict[str, int]


def run_to_its_end(work: Coroutine[None, None, T]) -> T:
    """Run a coroutine; the first SIGINT, SIGTERM or SIGHUP cancels it, and later ones do not disturb its clean-up.

    Raises click's Exit (128 + the signal's number) then.
    """
    came: list[int] = []

    async def main() -> T:
        task = asyncio.ensure_future(work)

        def ask(number: int) -> None:
            if not came:
                came.append(number)
                task.cancel()

        on_main = threading.current_thread() is threading.main_thread()  # signals come there alone
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if on_main else ():
            asyncio.get_running_loop().add_signal_handler(number, ask, number)
        return await task

    try:
        return asyncio.run(main())
    except asyncio.CancelledError:
        say("interrupted: the stage is stopped, its Redis database is empty again", err=True)
        raise click.exceptions.Exit(128 + came[0] if came else 1) from None


async def replay(
    settings: ServiceSettings,
    stage: str,
    *,
    group: str,
    suffix: str,
    since: float | None,
    redis_url: str,
    env: Mapping[str, str],
    log: Path,
    local: bool,
    timeout_seconds: float,
) -> Outcome:
    """Read the stage's topics from `since` (unix seconds; the beginning if None) to where they end now.

    Outputs go to `<topic><suffix>`; an empty suffix writes to the live topics, whose consumers recognise repeats by id.
    Raises ConfigError: the Redis database is in use, the service ended (with its log), the time ran out.
    """
    if _place(redis_url) == _place(settings.redis_url):
        raise ConfigError("--redis-url is the live database, which a replay empties at its end; name another one")
    inputs = [settings.input_topic(topic) for topic in STAGES[stage].inputs]
    outputs = [topic + suffix for topic in (*STAGES[stage].outputs, "dead.letters")]
    async with _own_database(redis_url) as database:
        if suffix:
            await create(settings, local=local, only=(*STAGES[stage].outputs, "dead.letters"), suffix=suffix)
        before = await _total(settings, outputs)
        starts, ends = await _position(settings, group, inputs, since)
        forgotten = 0
        if starts != ends:
            port = free_port()
            process = _start(settings, stage, group, suffix, redis_url, env, log, port)
            try:
                await database.belongs_to(process)
                forgotten = await _finished(settings, group, ends, process, port, timeout_seconds)
            finally:
                await asyncio.to_thread(process.stop, 60.0)
    after = await _total(settings, outputs)
    written = {topic: after.get(topic, 0) - before.get(topic, 0) for topic in outputs}
    return Outcome(read=sum(ends.values()) - sum(starts.values()), forgotten=forgotten, written=written)


async def _finished(
    settings: ServiceSettings,
    group: str,
    ends: Mapping[Partition, int],
    process: Process,
    port: int,
    timeout_seconds: float,
) -> int:
    """Wait until the stage has read up to `ends`. Returns how many records it left out."""
    try:
        async with asyncio.timeout(timeout_seconds):
            await _until_read(settings, group, ends, process)
        return await asyncio.to_thread(_left_out, port)
    except TimeoutError as error:
        raise ConfigError(
            f"not done after {timeout_seconds:.0f} s; give --timeout, and see {process.log}:\n{process.tail()}"
        ) from error


def _left_out(port: int) -> int:
    """What the stage counts as left out, asked before it stops."""
    text = get_text(f"http://127.0.0.1:{port}/metrics")
    samples = [s for family in text_string_to_metric_families(text) for s in family.samples]
    counted = [s for s in samples if s.name == "clawback_records_total" and s.labels["outcome"] == OUTCOME]
    return int(sum(s.value for s in counted))


def side_database(url: str, number: int = 15) -> str:
    """The same Redis, another database: a replay must not touch the live state."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc, f"/{number}", parts.query, parts.fragment))


def _place(url: str) -> tuple[str, int, str]:
    parts = urlsplit(url)
    return parts.hostname or "localhost", parts.port or 6379, parts.path.strip("/") or "0"


class _Owner(msgspec.Struct, frozen=True):
    """Who uses a replay's database: the replay and, once it runs, the stage's process."""

    host: str
    replay: tuple[int, float]  # pid, when it started
    stage: tuple[int, float] | None = None

    def processes(self) -> list[Process]:
        found = [("replay", self.replay), *([("stage", self.stage)] if self.stage else [])]
        return [Process(name, pid, started, Path(os.devnull)) for name, (pid, started) in found]


class _own_database:
    """An empty database at the start and an empty one at the end.

    A mark in it says whose it is: what a replay left that was killed is recognised and removed, nothing else is.
    """

    MARK = "clawback:replay"

    def __init__(self, url: str) -> None:
        self._url = url
        own = psutil.Process()
        self._owner = _Owner(socket.gethostname(), (own.pid, own.create_time()))

    async def __aenter__(self) -> _own_database:
        async with Redis.from_url(self._url) as redis:
            if await redis.dbsize():
                await self._take_over(redis)
            await redis.set(self.MARK, msgspec.json.encode(self._owner))
        return self

    async def belongs_to(self, process: Process) -> None:
        """Name the stage's process in the mark, so that it can be stopped should this process be killed."""
        self._owner = msgspec.structs.replace(self._owner, stage=(process.pid, process.started))
        async with Redis.from_url(self._url) as redis:
            await redis.set(self.MARK, msgspec.json.encode(self._owner))

    async def _take_over(self, redis: Redis) -> None:
        """Remove what a killed replay of this machine left. Raises ConfigError when it is anything else."""
        where = urlsplit(self._url).path
        try:
            left = msgspec.json.decode(await redis.get(self.MARK) or b"", type=_Owner)
        except msgspec.MsgspecError:
            left = None
        if left is None or left.host != socket.gethostname():
            raise ConfigError(
                f"the Redis database of the replay is not empty ({where}); a replay needs one of its own: give "
                "--redis-url, or empty it if an interrupted replay left it"
            )
        running, *stage = left.processes()
        if running.alive():
            raise ConfigError(f"another replay (pid {running.pid}) uses the Redis database {where}; give --redis-url")
        for process in stage:
            await asyncio.to_thread(process.stop, 60.0)
        await redis.flushdb()

    async def __aexit__(self, *_: object) -> None:
        async with Redis.from_url(self._url) as redis:
            await redis.flushdb()


def _start(
    settings: ServiceSettings,
    stage: str,
    group: str,
    suffix: str,
    redis_url: str,
    env: Mapping[str, str],
    log: Path,
    port: int,
) -> Process:
    own = {
        "CLAWBACK_KAFKA_BOOTSTRAP_SERVERS": settings.kafka_bootstrap_servers,
        "CLAWBACK_KAFKA_IDEMPOTENT_PRODUCER": str(settings.kafka_idempotent_producer).lower(),
        "CLAWBACK_KAFKA_FETCH_MAX_WAIT_MS": str(settings.kafka_fetch_max_wait_ms),
        "CLAWBACK_REDIS_URL": redis_url,
        "CLAWBACK_STREAM_GROUP": group,
        "CLAWBACK_STREAM_OUTPUT_SUFFIX": suffix,
        "CLAWBACK_HTTP_HOST": "127.0.0.1",
        "CLAWBACK_HTTP_PORT": str(port),
    }
    argv = [sys.executable, "-m", f"services.{stage}"]
    return spawn(stage, argv, log, {**os.environ, **own, **env}, cwd=ROOT)


async def _position(
    settings: ServiceSettings, group: str, topics: list[str], since: float | None
) -> tuple[dict[Partition, int], dict[Partition, int]]:
    """Set the group to the start; returns where it starts and where the topics end now."""
    ends = await end_offsets(settings, topics)
    consumer = AIOKafkaConsumer(**client_options(settings), group_id=group, enable_auto_commit=False)
    await consumer.start()
    try:
        partitions = [TopicPartition(*partition) for partition in ends]
        starts = dict(await consumer.beginning_offsets(partitions))
        if since is not None:
            at = await consumer.offsets_for_times({p: int(since * 1000) for p in partitions})
            # Nothing that young: None, or from the local broker an entry with the time -1.
            young = {p: found.offset for p, found in at.items() if found is not None and found.timestamp >= 0}
            starts = {p: young.get(p, ends[(p.topic, p.partition)]) for p in partitions}
        consumer.assign(partitions)
        await consumer.commit(starts)
    except CommitFailedError as error:
        raise ConfigError(f"the consumer group {group} is in use; give another --name or --group") from error
    finally:
        await consumer.stop()
    return {(p.topic, p.partition): offset for p, offset in starts.items()}, ends


async def _until_read(settings: ServiceSettings, group: str, ends: Mapping[Partition, int], process: Process) -> None:
    consumer = AIOKafkaConsumer(**client_options(settings), group_id=group, enable_auto_commit=False)
    await consumer.start()
    try:
        while True:
            if not process.alive():
                raise ConfigError(f"{process.name} ended before it was done; its log {process.log}:\n{process.tail()}")
            done = [((await consumer.committed(TopicPartition(*p))) or 0) >= end for p, end in ends.items()]
            if all(done):
                return
            await asyncio.sleep(0.5)
    finally:
        await consumer.stop()


async def _total(settings: ServiceSettings, topics: list[str]) -> dict[str, int]:
    totals: dict[str, int] = {}
    for (topic, _), end in (await end_offsets(settings, topics)).items():
        totals[topic] = totals.get(topic, 0) + end
    return totals
