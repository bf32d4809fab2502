"""The matcher's speed: through the real service, its cost by number of open sessions, and beside a plain scan.

Exchanges have 20 messages and no id, so every binding is found in the transcript. The service figure is taken with
broker, Redis and matcher on this machine; records lie on the topic before the matcher starts, and the clock runs from
the first thousand matched to the last by the matcher's own counter. On a machine that does other work as well, the CPU
time of the parts says more: two idle cores would match `..._of_two_idle_cores` exchanges a second. The cost by open
sessions is taken on two Redis servers in turns, so that a busy machine slows both alike.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from urllib.request import urlopen

import psutil

from deploy.local import broker as local_broker
from deploy.local import redis as local_redis
from deploy.local.process import Process, free_port, spawn
from deploy.local.stack import ROOT
from deploy.topics.create import create
from libs.contracts import TrafficRaw, encode
from libs.dialects import partition_key
from libs.matching.matcher import Matcher
from libs.streams.config import ServiceSettings
from libs.streams.producer import KafkaProducer
from libs.streams.sessions import ScriptStore
from libs.streams.types import Output
from services.matcher.state import RedisState
from tests.bench.matching.load import exchange
from tests.bench.matching.scan import Scan

_WARM = 1_000


async def through_the_service(count: int, home: Path, processes: int) -> dict[str, float]:
    """Exchanges a second through `processes` matcher processes, and the CPU time that each part took for one."""
    broker, bootstrap = local_broker.start(home / "broker.log")
    redis, redis_url = local_redis.start(home / "redis.log")
    running: list[Process] = []
    try:
        suffix = f".t{uuid.uuid4().hex[:8]}"
        env = {"CLAWBACK_KAFKA_BOOTSTRAP_SERVERS": bootstrap, **local_broker.CLIENT_ENV}
        settings = ServiceSettings.model_validate({k.removeprefix("CLAWBACK_").lower(): v for k, v in env.items()})
        await create(settings, local=True, suffix=suffix)
        await _fill(settings, f"traffic.raw{suffix}", count)
        ports = [free_port() for _ in range(processes)]
        for n, port in enumerate(ports):
            own = {
                **env,
                "CLAWBACK_REDIS_URL": redis_url,
                "CLAWBACK_HTTP_PORT": str(port),
                "CLAWBACK_STREAM_INPUT_SUFFIX": suffix,
                "CLAWBACK_STREAM_OUTPUT_SUFFIX": suffix,
                "CLAWBACK_LOG_LEVEL": "WARNING",
                "PYTHONPATH": str(ROOT),
            }
            running.append(spawn("matcher", [sys.executable, "-m", "services.matcher"], home / f"m{n}.log", own, ROOT))
        return await _rate(ports, count, {"matcher": running, "redis": [redis], "broker": [broker]})
    finally:
        for process in (*running, broker, redis):
            process.stop(5.0)


async def _fill(settings: ServiceSettings, topic: str, count: int) -> None:
    """Put `count` exchanges on a topic, five of each session."""
    producer = KafkaProducer(settings)
    sessions = count // 5
    for turn in range(5):
        records = [exchange(s, turn) for s in range(sessions)]
        left: Sequence[Output] = [Output(topic, partition_key(r), encode(r)) for r in records]
        while left:
            left = await producer.send_all(left)
    await producer.stop()


def _done(port: int) -> float:
    try:
        text = urlopen(f"http://127.0.0.1:{port}/metrics", timeout=2).read().decode()
    except OSError:
        return 0.0
    lines = [x for x in text.splitlines() if x.startswith("clawback_exchanges_total{")]
    return sum(float(x.rsplit(" ", 1)[1]) for x in lines)


def _cpu_seconds(parts: dict[str, list[Process]]) -> dict[str, float]:
    return {
        name: sum(sum(psutil.Process(p.pid).cpu_times()[:2]) for p in processes) for name, processes in parts.items()
    }


async def _rate(ports: list[int], count: int, parts: dict[str, list[Process]]) -> dict[str, float]:
    began, first, done = 0.0, 0.0, 0.0
    used: dict[str, float] = {}
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        done = sum(await asyncio.gather(*(asyncio.to_thread(_done, port) for port in ports)))
        if not began and done >= _WARM:
            began, first, used = time.monotonic(), done, _cpu_seconds(parts)
        if done >= count:
            n, after = done - first, _cpu_seconds(parts)
            cost = {name: (after[name] - used[name]) / n for name in used}
            return {
                "matcher_exchanges_per_second": n / (time.monotonic() - began),
                "matcher_exchanges_per_second_of_two_idle_cores": 2 / sum(cost.values()),
                **{f"matcher_cpu_microseconds_{name}": seconds * 1e6 for name, seconds in cost.items()},
            }
        await asyncio.sleep(_pause(time.monotonic() - began, done - first, count - done) if began else 0.5)
    raise TimeoutError(f"{done:.0f} of {count} exchanges matched in time")


def _pause(seconds: float, done: float, left: float) -> float:
    """Until the counters are read again. Their page costs the matcher time, so seldom, and closer towards the end."""
    return min(2.0, max(0.1, 0.9 * left * seconds / done)) if done else 0.5


async def by_open_sessions(few: int, many: int, rounds: int, home: Path) -> dict[str, float]:
    """Time per exchange with `few` and with `many` open sessions, in turns, and the memory of a session."""
    cost: dict[int, list[float]] = {few: [], many: []}
    memory = {}
    servers = {n: local_redis.start(home / f"redis-{n}.log") for n in (few, many)}
    try:
        stores = {n: ScriptStore(url) for n, (_, url) in servers.items()}
        matchers = {n: Matcher(RedisState(store)) for n, store in stores.items()}
        for n in (few, many):
            before = (await stores[n].redis.info("memory"))["used_memory"]
            await _all(matchers[n], (exchange(10_000 + s, 0, messages=2) for s in range(n)))
            memory[n] = ((await stores[n].redis.info("memory"))["used_memory"] - before) / n
        for turn in range(rounds):
            batch = [exchange(s, turn) for s in range(250)]
            for n in (few, many) if turn % 2 else (many, few):
                began = time.perf_counter()
                for record in batch:
                    await matchers[n].match(record)
                cost[n].append((time.perf_counter() - began) / len(batch))
        before = (await stores[few].redis.info("memory"))["used_memory"]
        await _all(matchers[few], (exchange(500_000 + s, 0) for s in range(500)))
        grown = (await stores[few].redis.info("memory"))["used_memory"] - before
        for store in stores.values():
            await store.close()
    finally:
        for process, _ in servers.values():
            process.stop(5.0)
    ratios = [b / a for a, b in zip(cost[few][1:], cost[many][1:], strict=True)]
    return {
        "matcher_cost_100k_over_1k_sessions": statistics.median(ratios),
        "matcher_microseconds_1k_sessions": statistics.median(cost[few]) * 1e6,
        "matcher_microseconds_100k_sessions": statistics.median(cost[many]) * 1e6,
        "matcher_bytes_per_open_session_2_messages": memory[many],
        "matcher_bytes_per_open_session_20_messages": grown / 500,
    }


async def _all(matcher: Matcher, records: object) -> None:
    async def one(record: TrafficRaw) -> None:
        async with limit:
            await matcher.match(record)

    limit = asyncio.Semaphore(24)
    tasks: set[asyncio.Task[None]] = set()
    for record in records:  # type: ignore[attr-defined]
        tasks.add(asyncio.create_task(one(record)))
        if len(tasks) >= 500:
            await asyncio.gather(*tasks)
            tasks.clear()
    await asyncio.gather(*tasks)


def scan_seconds(sessions: int, probes: int) -> float:
    """Time per exchange of the plain scan with so many open sessions, half of them opening alike."""
    scan = Scan()
    for s in range(sessions):
        scan.open(exchange(s, 0, messages=6, same_opening=s % 2 == 0))
    records = [exchange(s, 1, messages=6, same_opening=s % 2 == 0) for s in range(probes)]
    began = time.perf_counter()
    found = [scan.match(r) for r in records]
    seconds = (time.perf_counter() - began) / probes
    assert all(found), "the scan must bind what it is timed on"
    return seconds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--exchanges", type=int, default=24_000)
    parser.add_argument("--many", type=int, default=100_000)
    parser.add_argument("--processes", type=int, default=2, help="matcher processes, one a core")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        figures = asyncio.run(through_the_service(args.exchanges, home, args.processes))
        print(json.dumps(figures), flush=True)
        rate = figures["matcher_exchanges_per_second"]
        figures["matcher_processes"] = args.processes
        figures |= asyncio.run(by_open_sessions(1_000, args.many, 12, home))
    scans = {n: scan_seconds(n, 200 if n <= 1_000 else 20) for n in (1_000, args.many)}
    figures["scan_microseconds_1k_sessions"] = scans[1_000] * 1e6
    figures["scan_microseconds_100k_sessions"] = scans[args.many] * 1e6
    figures["matcher_over_scan"] = rate * scans[args.many]
    figures["matcher_over_scan_1k_sessions"] = rate * scans[1_000]
    figures = {name: round(value, 3) for name, value in figures.items()}
    path = ROOT / "runs" / "bench-matching.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(figures, indent=2) + "\n")
    print(json.dumps(figures, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
