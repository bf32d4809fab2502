"""Health and metrics over HTTP: /healthz (alive), /readyz (assigned, dependencies answer), /metrics (Prometheus)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from prometheus_client import REGISTRY
from prometheus_client.exposition import choose_encoder

from libs.errors import ConfigError
from libs.streams.config import ServiceSettings
from libs.telemetry.logs import get_logger

Check = Callable[[], Awaitable[None]]  # raises when the dependency does not answer

_CHECK_SECONDS = 5.0
_log = get_logger("streams.http")


def health_routes(app: web.Application, checks: Mapping[str, Check]) -> None:
    """Add the three routes to a service's own application."""

    async def healthz(_request: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def readyz(_request: web.Request) -> web.Response:
        answers = dict(zip(checks, await asyncio.gather(*map(_ask, checks.values())), strict=True))
        ready = all(answer == "ok" for answer in answers.values())
        return web.json_response({"ready": ready, "checks": answers}, status=200 if ready else 503)

    async def metrics(request: web.Request) -> web.Response:
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        return web.Response(body=encode(REGISTRY), headers={"content-type": content_type})

    app.router.add_get("/healthz", healthz)
    app.router.add_get("/readyz", readyz)
    app.router.add_get("/metrics", metrics)


async def _ask(check: Check) -> str:
    try:
        async with asyncio.timeout(_CHECK_SECONDS):
            await check()
    except TimeoutError:
        return f"no answer within {_CHECK_SECONDS:.0f} s"
    except Exception as error:
        return str(error) or repr(error)
    return "ok"


@asynccontextmanager
async def listening(app: web.Application, settings: ServiceSettings, drain_seconds: float = 10.0) -> AsyncIterator[int]:
    """Serve `app`; yields the port (the chosen one for http_port 0). On exit open requests get drain_seconds.

    Raises ConfigError when the port is taken.
    """
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=drain_seconds, handler_cancellation=True)
    async with serving(runner, settings, reuse_address=True) as port:
        _log.info("listening", host=settings.http_host, port=port)
        yield port


@asynccontextmanager
async def serving(runner: web.AppRunner, settings: ServiceSettings, **site: Any) -> AsyncIterator[int]:
    """The runner on the settings' host and port; `site` goes to web.TCPSite. Raises ConfigError as `listening` does."""
    await runner.setup()
    try:
        await web.TCPSite(runner, settings.http_host, settings.http_port, **site).start()
    except OSError as error:
        await runner.cleanup()
        raise ConfigError(
            f"CLAWBACK_HTTP_PORT: cannot listen on {settings.http_host}:{settings.http_port} ({error.strerror}); "
            "stop what uses the port or choose another one"
        ) from error
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()
