"""Runs the Faust application and the web server in one loop until a signal or a fault."""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import signal
import tempfile
import time
from pathlib import Path

import faust
from aiokafka.errors import KafkaError

from libs.errors import RetryError
from libs.streams.http import listening
from libs.telemetry.logs import configure, get_logger
from services.monitor.application import EXIT_FAULT, build
from services.monitor.config import MonitorSettings
from services.monitor.lag import watch_lag
from services.monitor.rewind import Positions, fresh_group, rewind
from services.monitor.web import Web

log = get_logger("monitor")


def run(settings: MonitorSettings) -> int:
    """Returns the exit status: 0 after a signal, 70 after a fault."""
    configure("monitor", settings.log_level)
    faulthandler.register(signal.SIGUSR1)  # as in libs.streams.service.run
    with tempfile.TemporaryDirectory(prefix="clawback-monitor-") as scratch:
        return asyncio.run(_run(settings, Path(scratch)))


async def _run(settings: MonitorSettings, scratch: Path) -> int:
    positions, group = Positions(), fresh_group(settings.monitor_group)
    app, recorder = build(settings, group, positions, scratch)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    site = Web(settings, recorder, ready=positions.caught_up)
    async with listening(site.application(), settings):
        return await _until_stopped(app, settings, site, group, positions, stop)


async def _until_stopped(
    app: faust.App, settings: MonitorSettings, site: Web, group: str, positions: Positions, stop: asyncio.Event
) -> int:
    lag = asyncio.create_task(
        watch_lag(
            settings,
            site,
            settings.monitor_lag_groups,
            positions.next,
            interval_seconds=settings.monitor_lag_interval_seconds,
        )
    )
    following = asyncio.create_task(_follow(app, settings, group, positions))
    stopping = asyncio.create_task(stop.wait())
    done, _ = await asyncio.wait({following, lag, stopping}, return_when=asyncio.FIRST_COMPLETED)
    status = 0
    for task in done - {stopping}:
        status = EXIT_FAULT
        log.critical("stopping", error=repr(task.exception()))
    for task in (following, lag):
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await task
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(app.stop(), 15)
    return status


async def _follow(app: faust.App, settings: MonitorSettings, group: str, positions: Positions) -> None:
    """Set the group to where the kept time begins, start Faust and stay until it stops; raise what it crashed with."""
    since = time.time() - settings.monitor_retention_seconds
    while True:
        try:
            await rewind(settings, group, since=since, positions=positions)
            break
        except (KafkaError, RetryError, OSError) as error:
            log.warning("broker away", error=repr(error))
            await asyncio.sleep(1.0)
    await app.start()
    await app.wait_until_stopped()
    raise RuntimeError(f"Faust stopped: {app.crash_reason!r}")
