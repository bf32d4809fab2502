"""The gateway put together: routes, spool, publisher, listening socket, and the order in which it stops."""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
from collections.abc import AsyncIterator

from aiohttp import web

from libs.contracts.traffic_raw import TOPIC
from libs.dialects import partition_key
from libs.dialects.assembly import ASSEMBLERS
from libs.errors import ConfigError
from libs.streams.client import RECORD_OVERHEAD_BYTES, client_options
from libs.streams.diagnose import why_unreachable
from libs.streams.http import health_routes, serving
from libs.telemetry import metrics
from libs.telemetry.logs import get_logger
from services.gateway.access import Access
from services.gateway.config import GatewaySettings
from services.gateway.connections import Runner
from services.gateway.proxy import Proxy
from services.gateway.publisher import Publisher, kafka_producer
from services.gateway.recorder import Recorder
from services.gateway.redaction.setup import redactor
from services.gateway.spool import Spool
from services.gateway.upstream import Upstreams

log = get_logger("gateway.server")

_SEND_ON_STOP_SECONDS = 10.0


class Gateway:
    """One process: the client side, the upstream side and the way to the broker."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._settings = settings
        client_options(settings)  # a wrong TLS or login setting stops the start, not the publisher later
        self.spool = Spool(
            settings.spool_dir,
            max_bytes=settings.gateway_spool_max_bytes,
            segment_bytes=settings.gateway_spool_segment_bytes,
        )
        if self.spool.corrupt_segments:
            metrics.GATEWAY_DROPPED.labels("spool_damaged").inc(self.spool.corrupt_segments)
        self.publisher = Publisher(
            self.spool,
            lambda: kafka_producer(settings),
            topic=TOPIC + settings.stream_output_suffix,
            max_value_bytes=settings.kafka_max_request_size - RECORD_OVERHEAD_BYTES,
            claims_url=settings.claims_url,
            why_unreachable=lambda: why_unreachable(client_options(settings)),
        )
        self.recorder = Recorder(
            self.spool,
            key_of=partition_key,
            wake=self.publisher.wake,
            wait_seconds=settings.gateway_record_wait_seconds,
            max_bytes=settings.gateway_record_max_bytes,
            redactor=redactor(settings),
        )
        self.upstreams = Upstreams(settings)
        self.proxy = Proxy(settings, self.upstreams, self.recorder, Access(settings))

    def app(self) -> web.Application:
        """Every route: recorded ones by name, health, and all the rest passed through."""
        app = web.Application(client_max_size=self._settings.gateway_max_body_bytes)
        health_routes(app, {"spool": self._spool_ready})
        for path in ASSEMBLERS:
            app.router.add_post(path, self.proxy.recorded(path))
            # Clients whose base URL was given without /v1 reach the same route.
            app.router.add_post(path.removeprefix("/v1"), self.proxy.recorded(path))
        app.router.add_route("*", "/{anything:.*}", self.proxy.passed_through)
        return app

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Publisher and flusher at work. On exit records still in memory are written, then sent if the broker is up."""
        await self.upstreams.start()
        tasks = [asyncio.create_task(self.publisher.run()), asyncio.create_task(self._flush())]
        for task in tasks:
            task.add_done_callback(_exit_on_failure)
        try:
            yield
        finally:
            await self.recorder.drained()
            if not await self.publisher.drained(_SEND_ON_STOP_SECONDS if self.publisher.connected else 0.1):
                log.warning("records_left_in_spool", records=self.spool.records)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self.publisher.stop()
            await self.upstreams.stop()
            self.spool.close()

    async def _flush(self) -> None:
        pause = self._settings.gateway_spool_fsync_seconds
        while pause:
            await asyncio.sleep(pause)
            if (descriptor := self.spool.flush()) is not None:
                with contextlib.suppress(OSError):
                    await asyncio.to_thread(os.fdatasync, descriptor)

    async def _spool_ready(self) -> None:
        """A broker that is away does not make the gateway unready: the spool bridges it until it is full."""
        if self.spool.size >= self._settings.gateway_spool_max_bytes:
            raise ConfigError("the spool is full and the broker does not take records", reason="spool_full")


async def serve(settings: GatewaySettings, stop: asyncio.Event) -> None:
    """Listen until `stop`; then no new requests, open ones get gateway_drain_seconds, then the records go out."""
    gateway = Gateway(settings)
    async with gateway.running(), listening(gateway.app(), settings) as port:
        log.info("listening", host=settings.http_host, port=port, upstream=settings.gateway_upstream_url)
        await stop.wait()


@contextlib.asynccontextmanager
async def listening(app: web.Application, settings: GatewaySettings) -> AsyncIterator[int]:
    """Serve `app` with request bodies left as they came; yields the port. Raises ConfigError."""
    runner = Runner(
        app,
        receive_seconds=settings.gateway_receive_timeout_seconds,
        access_log=None,
        handler_cancellation=True,
        auto_decompress=False,
        shutdown_timeout=settings.gateway_drain_seconds,
        keepalive_timeout=75.0,
    )
    async with serving(runner, settings, ssl_context=_tls(settings), backlog=1024) as port:
        yield port


def _tls(settings: GatewaySettings) -> ssl.SSLContext | None:
    if not settings.gateway_tls_cert_file:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(settings.gateway_tls_cert_file, settings.gateway_tls_key_file)
    except OSError as error:
        raise ConfigError(f"CLAWBACK_GATEWAY_TLS_CERT_FILE: cannot load the certificate: {error}") from error
    return context


def _exit_on_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        log.error("background_task_failed", error=repr(task.exception()))
        os._exit(1)  # the supervisor starts it again; the spool keeps every record
