"""Drive a gateway and measure what arrives as judged turns."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import aiohttp
import psutil
from redis.asyncio import Redis

from deploy.local.state import Stack
from libs.contracts import TrafficRaw, TurnJudged, decode
from libs.streams.config import ServiceSettings
from libs.streams.follow import end_offsets, read

COMPLAINT = "No, keep the explanation, just stop formatting everything as bulleted lists."
MEASURED = ("gateway", "matcher", "judge", "broker", "redis")


@dataclass(slots=True)
class Clients:
    """Sessions of two exchanges: a question and a complaint about its answer."""

    url: str
    prefix: str
    concurrency: int
    pad_chars: int
    sessions_open: int  # sessions take turns: that many lie between a question and its complaint
    exchanges: int = 0
    failures: int = 0
    waits: list[float] = field(default_factory=list)  # seconds an exchange took
    _waiting: list[tuple[str, list[dict[str, str]]]] = field(default_factory=list)
    _number: int = 0

    @property
    def sessions(self) -> int:
        return self._number

    async def run(self, seconds: float, rate: float = 0.0) -> float:
        """Send for that long, at `rate` exchanges a second, or as fast as answers come. Returns the seconds taken."""
        timeout = aiohttp.ClientTimeout(total=120)
        began = time.perf_counter()
        async with aiohttp.ClientSession(
            timeout=timeout, trust_env=False, connector=aiohttp.TCPConnector(limit=0)
        ) as http:
            stop_at = began + seconds
            if rate:
                await self._paced(http, stop_at, rate)
            else:
                await asyncio.gather(*(self._saturate(http, stop_at) for _ in range(self.concurrency)))
        return time.perf_counter() - began

    async def _saturate(self, http: aiohttp.ClientSession, stop_at: float) -> None:
        while time.perf_counter() < stop_at:
            await self._one(http)

    async def _paced(self, http: aiohttp.ClientSession, stop_at: float, rate: float) -> None:
        tasks: set[asyncio.Task[None]] = set()
        due = time.perf_counter()
        while due < stop_at:
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            task = asyncio.create_task(self._one(http))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            due += 1 / rate
        await asyncio.gather(*tasks)

    async def _one(self, http: aiohttp.ClientSession) -> None:
        if len(self._waiting) >= self.sessions_open:
            name, messages = self._waiting.pop(0)
            messages = [*messages, {"role": "user", "content": COMPLAINT}]
        else:
            self._number += 1
            name = f"{self.prefix}-{self._number}"
            messages = [{"role": "user", "content": f"{name}: why does ice float?" + " so" * (self.pad_chars // 3)}]
        began = time.perf_counter()
        try:
            headers = {"x-reef-scenario": f"s{int(name.rpartition('-')[2]) % 8}", "x-reef-tag-session": name}
            body = {"model": "upstream", "messages": messages}
            async with http.post(f"{self.url}/v1/chat/completions", json=body, headers=headers) as answer:
                found = await answer.json()
                if answer.status != 200:
                    self.failures += 1
                    return
        except (aiohttp.ClientError, TimeoutError):
            self.failures += 1
            return
        self.waits.append(time.perf_counter() - began)
        self.exchanges += 1
        if len(messages) == 1:
            self._waiting.append((name, [*messages, found["choices"][0]["message"]]))


class Cpu:
    """CPU seconds of the measured processes since the start."""

    def __init__(self, stack: Stack) -> None:
        entries = {**stack.infrastructure, **stack.services}
        self._processes = {name: psutil.Process(entries[name].pid) for name in MEASURED if name in entries}
        self._begin = self._now()

    def _now(self) -> dict[str, float]:
        return {name: sum(process.cpu_times()[:2]) for name, process in self._processes.items()}

    def spent(self) -> dict[str, float]:
        return {name: seconds - self._begin[name] for name, seconds in self._now().items()}


async def drained(settings: ServiceSettings, turns: int, patience_seconds: float = 60.0) -> int:
    """Wait until that many judged turns lie on the topic, or no more come. Returns how many there are."""
    count, moved = -1, time.monotonic()
    while True:
        ends = await end_offsets(settings, ["turns.judged"])
        found = sum(ends.values())
        if found != count:
            count, moved = found, time.monotonic()
        if count >= turns or time.monotonic() - moved > patience_seconds:
            return count
        await asyncio.sleep(0.2)


async def latencies(settings: ServiceSettings, since_ms: int) -> list[float]:
    """Seconds from the answering exchange on traffic.raw to its verdict on turns.judged, by the records' timestamps."""
    raw: dict[str, int] = {}
    found = []
    async for record in read(settings, ["traffic.raw"]):
        if record is not None and record.timestamp_ms >= since_ms:
            raw[decode(record.value, TrafficRaw).exchange_id] = record.timestamp_ms
    async for record in read(settings, ["turns.judged"]):
        if record is not None and record.timestamp_ms >= since_ms:
            answered_by = decode(record.value, TurnJudged).answered_by
            if answered_by in raw:
                found.append((record.timestamp_ms - raw[answered_by]) / 1000)
    return found


async def record_bytes(settings: ServiceSettings) -> dict[str, int]:
    """Mean size of a record on each topic, uncompressed."""
    found = {}
    for topic in ("traffic.raw", "exchanges.classified", "turns.matched", "turns.judged"):
        sizes = [len(record.value) async for record in read(settings, [topic]) if record is not None]
        found[topic] = round(sum(sizes) / len(sizes)) if sizes else 0
    return found


async def redis_bytes(url: str) -> int:
    """Memory that Redis uses for its data set, in bytes."""
    client = Redis.from_url(url)
    try:
        return int((await client.info("memory"))["used_memory_dataset"])
    finally:
        await client.aclose()


def percentiles(values: list[float], scale: float = 1000.0) -> Mapping[str, float]:
    """p50 and p99, in milliseconds by default; empty when there is nothing."""
    if not values:
        return {}
    ordered = sorted(values)
    return {f"p{p}": round(scale * ordered[min(len(ordered) - 1, int(len(ordered) * p / 100))], 2) for p in (50, 99)}
