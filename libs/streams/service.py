"""How a service runs: settings, event loop, logs, health over HTTP, signals, and the consumer loop.

A service's main.py is then: `sys.exit(run_consumer("matcher", load(MatcherSettings), ["traffic.raw"], open_handler))`.
"""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import signal
from collections.abc import Callable, Collection, Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Any

import uvloop
from aiohttp import web

from libs.errors import ClawbackError, RetryError
from libs.streams.backend import Consumer, Producer
from libs.streams.config import ServiceSettings
from libs.streams.consumer import KafkaConsumer
from libs.streams.forgotten import LeavesOut
from libs.streams.http import Check, health_routes, listening
from libs.streams.loop import StreamLoop
from libs.streams.producer import KafkaProducer
from libs.streams.types import Handler
from libs.streams.work import LoopOptions
from libs.telemetry import logs

# Opens what the handler needs (Redis, an HTTP session) and closes it again:
# @asynccontextmanager
# async def open_handler() -> AsyncIterator[Handler]: ...
OpenHandler = Callable[[], AbstractAsyncContextManager[Handler]]


def run_consumer(service: str, settings: ServiceSettings, topics: Collection[str], open_handler: OpenHandler) -> int:
    """Run a handler over topics until SIGTERM or SIGINT. Returns the exit status: 0, or 1 after a StopError.

    Methods that a handler may have beside Handler's own: `async ready()` raises while a dependency is away;
    `async start_positions(partitions) -> Position` says where to read from (see StreamLoop), `position_by(first_open)`
    is given once what such a position must not pass; `leave_out(forgotten)` is given the tombstones once, by a handler
    that keeps records or whose records name several people.
    """
    return run(service, settings, lambda stop: _consume(service, settings, topics, open_handler, stop))


def collect_rarely() -> None:
    """For services whose records come and go without cycles: the collector neither walks what was imported nor stops
    a request every 700 objects. Call it once everything is imported.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


def run(service: str, settings: ServiceSettings, work: Callable[[asyncio.Event], Coroutine[Any, Any, None]]) -> int:
    """Run `work(stop)` on uvloop with logs and signals set up; SIGTERM and SIGINT set `stop`."""
    logs.configure(service, settings.log_level)
    faulthandler.register(signal.SIGUSR1)  # kill -USR1 shows where a stuck service is
    log = logs.get_logger(service)

    async def main() -> None:
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        await work(stop)

    try:
        uvloop.run(main())
    except ClawbackError as error:
        log.error("stopped", reason=error.reason, error=str(error))
        return 1
    log.info("stopped")
    return 0


def loop_of(
    service: str, handler: Handler, filtered: Handler, consumer: Consumer, producer: Producer, options: LoopOptions
) -> StreamLoop:
    """The loop over `filtered`, which `handler` lies behind."""
    starts = getattr(handler, "start_positions", None)
    loop = StreamLoop(service, filtered, consumer, producer, options, start_positions=starts)
    if hasattr(handler, "position_by"):
        handler.position_by(loop.first_open)
    return loop


async def _consume(
    service: str,
    settings: ServiceSettings,
    topics: Collection[str],
    open_handler: OpenHandler,
    stop: asyncio.Event,
) -> None:
    producer = KafkaProducer(settings)
    try:
        async with open_handler() as handler:
            inputs = [settings.input_topic(topic) for topic in topics]
            consumer = KafkaConsumer(settings, inputs, settings.stream_group or f"clawback-{service}")
            filtered = LeavesOut(handler, settings)
            loop = loop_of(service, handler, filtered, consumer, producer, LoopOptions.of(settings))

            async def assigned() -> None:
                if not loop.assigned.is_set():
                    raise RetryError("no partitions assigned yet", reason="not_assigned")

            checks: dict[str, Check] = {"assigned": assigned, "kafka": producer.ping}
            if hasattr(handler, "ready"):
                checks["handler"] = handler.ready
            app = web.Application()
            health_routes(app, checks)
            async with listening(app, settings):
                stopping = asyncio.create_task(_forward(stop, loop))
                try:
                    await filtered.start()
                    await loop.run()
                finally:
                    stopping.cancel()
                    await filtered.stop()
    finally:
        await producer.stop()


async def _forward(stop: asyncio.Event, loop: StreamLoop) -> None:
    await stop.wait()
    loop.stop()
