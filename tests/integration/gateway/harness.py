"""A real gateway in this process or in its own, in front of an upstream that answers as a test tells it to."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from aiohttp import web
from aiokafka import AIOKafkaConsumer

from libs.contracts import TrafficRaw, decode
from services.gateway.config import GatewaySettings
from services.gateway.server import Gateway, listening
from services.gateway.spool import Cursor, Spool

Answer = Callable[[web.Request, bytes], Awaitable[web.StreamResponse]]


@dataclass
class Seen:
    """One request as the upstream got it."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Upstream:
    """A provider under the test's control: `answer` serves every request, `seen` keeps what came."""

    answer: Answer
    url: str = ""
    seen: list[Seen] = field(default_factory=list)

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        headers = {k.lower(): v for k, v in request.headers.items()}
        self.seen.append(Seen(request.method, request.raw_path, headers, body))
        return await self.answer(request, body)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Upstream]:
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.router.add_route("*", "/{path:.*}", self._handle)
        runner = web.AppRunner(app, handler_cancellation=True, auto_decompress=False, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield self
        finally:
            await runner.cleanup()


@dataclass
class Running:
    """A gateway that serves."""

    url: str
    gateway: Gateway
    spool_dir: Path
    grown: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        wake = self.gateway.recorder._wake

        def woken() -> None:
            wake()
            self.grown.set()

        self.gateway.recorder._wake = woken

    async def until_recorded(self, count: int = 1, timeout_seconds: float = 20.0) -> None:
        """Wait until that many records lie in the spool."""
        async with asyncio.timeout(timeout_seconds):
            while self.gateway.spool.records < count:
                self.grown.clear()
                await self.grown.wait()

    async def records(self) -> list[TrafficRaw]:
        """What lies in the spool, in order (the broker of these tests is away, so nothing leaves it)."""
        await self.gateway.recorder.drained()
        spool = self.gateway.spool
        return [decode(f.value, TrafficRaw) for f in spool.read(spool.head, max_records=10**6, max_bytes=10**9)]

    async def record(self) -> TrafficRaw:
        records = await self.records()
        assert len(records) == 1, [r.path for r in records]
        return records[0]


@contextlib.asynccontextmanager
async def gateway(upstream_url: str, spool_dir: Path, **settings: Any) -> AsyncIterator[Running]:
    """A gateway in this process. Without kafka_bootstrap_servers its broker is away and records stay in the spool."""
    given = {"kafka_bootstrap_servers": "127.0.0.1:9", "kafka_idempotent_producer": False, **settings}
    config = GatewaySettings(gateway_upstream_url=upstream_url, gateway_spool_dir=str(spool_dir), **given)
    instance = Gateway(config)
    async with instance.running(), listening(instance.app(), config) as port:
        scheme = "https" if config.gateway_tls_cert_file else "http"
        yield Running(f"{scheme}://127.0.0.1:{port}", instance, spool_dir)


async def consume(bootstrap: str, topic: str, count: int, timeout_seconds: float = 30.0) -> list[TrafficRaw]:
    """The first `count` records of a topic, in partition order."""
    consumer = AIOKafkaConsumer(
        topic, bootstrap_servers=bootstrap, auto_offset_reset="earliest", fetch_max_wait_ms=20, enable_auto_commit=False
    )
    await consumer.start()
    found: list[TrafficRaw] = []
    try:
        while len(found) < count:
            batches = await consumer.getmany(timeout_ms=int(timeout_seconds * 1000))
            if not batches:
                break
            found += [decode(m.value, TrafficRaw) for batch in batches.values() for m in batch]
    finally:
        await consumer.stop()
    return found


def spooled(directory: Path) -> list[TrafficRaw]:
    """The records of a spool whose gateway is gone."""
    spool = Spool(directory, max_bytes=10**9, segment_bytes=10**9)
    try:
        frames = spool.read(max(spool.head, Cursor(0, 0)), max_records=10**6, max_bytes=10**9)
        return [decode(f.value, TrafficRaw) for f in frames]
    finally:
        spool.close()


@contextlib.contextmanager
def process(env: dict[str, str], log: Path) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """`python -m services.gateway` on a free port; yields the process and its URL once it listens.

    All that it prints is in `log` when the block ends.
    """
    full = {**os.environ, **env, "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", "services.gateway"]
    with log.open("ab") as out:
        child = subprocess.Popen(command, env=full, stdout=out, stderr=subprocess.PIPE)
        assert child.stderr is not None
        port: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        reader = threading.Thread(target=_follow, args=(child.stderr, out, port), daemon=True)
        reader.start()
        try:
            found = port.get(timeout=60)
            assert found, "the gateway did not start:\n" + log.read_text()
            yield child, f"http://127.0.0.1:{found}"
        finally:
            if child.poll() is None:
                child.kill()
            child.wait()
            reader.join(10)


def _follow(lines: IO[bytes], log: IO[bytes], port: queue.SimpleQueue[int | None]) -> None:
    """Copy a process's lines to its log, and tell the port on which it listens, None if it ends before."""
    for line in lines:
        log.write(line)
        log.flush()
        with contextlib.suppress(ValueError):
            event = json.loads(line)
            if event.get("event") == "listening":
                port.put(int(event["port"]))
    port.put(None)


def sse(*events: Any, done: bool = True) -> bytes:
    """OpenAI-style stream bytes."""
    body = b"".join(b"data: " + json.dumps(e, separators=(",", ":")).encode() + b"\n\n" for e in events)
    return body + (b"data: [DONE]\n\n" if done else b"")


def chat_chunk(content: str | None = None, finish: str | None = None, **delta: Any) -> dict[str, Any]:
    """One chat.completion.chunk."""
    if content is not None:
        delta["content"] = content
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
    }


async def stream_bytes(
    request: web.Request, *pieces: bytes, headers: dict[str, str] | None = None, status: int = 200
) -> web.StreamResponse:
    """Send the pieces one write each."""
    response = web.StreamResponse(status=status, headers={"Content-Type": "text/event-stream", **(headers or {})})
    await response.prepare(request)
    for piece in pieces:
        await response.write(piece)
    await response.write_eof()
    return response
