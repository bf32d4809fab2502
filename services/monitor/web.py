"""HTTP of the monitor: health, metrics, the status document and the Inspector. Read-only."""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib.resources import files
from typing import Any

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler

from libs.errors import RetryError
from libs.streams.http import health_routes
from services.monitor.config import MonitorSettings
from services.monitor.handler import Recorder
from services.monitor.inspector import conversations, reasons
from services.monitor.lag import Lags
from services.monitor.status import refresh_gauges, status


class Web:
    """Routes over one recorder. `ready` tells whether what was there at the start has been read."""

    def __init__(self, settings: MonitorSettings, recorder: Recorder, *, ready: Callable[[], bool]) -> None:
        self.lags: Lags = {}
        self._ttl = settings.monitor_session_ttl_seconds
        self._recorder = recorder
        self._ready = ready

    def application(self) -> web.Application:
        app = web.Application(middlewares=[self._fresh_gauges])
        health_routes(app, {"caught_up": self._caught_up})
        app.router.add_get("/api/status", self._status)
        app.router.add_get("/api/conversations", self._conversations)
        app.router.add_get("/api/dead-letters", self._dead_letters)
        app.router.add_get("/", self._page)
        app.router.add_get("/inspector", self._home)
        return app

    async def _caught_up(self) -> None:
        if not self._ready():
            raise RetryError("the topics are being read back", reason="not_caught_up")

    @web.middleware
    async def _fresh_gauges(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path == "/metrics":
            refresh_gauges(self._recorder.ledger, ttl_seconds=self._ttl, now=time.time())
        return await handler(request)

    async def _status(self, request: web.Request) -> web.Response:
        document = status(self._recorder.ledger, ttl_seconds=self._ttl, now=time.time())
        return _json(document | {"lag": self.lags, "dead_letters": self._letters_by_reason()})

    def _letters_by_reason(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for letter in self._recorder.dead.values():
            label = f"{letter.service}/{letter.reason}"
            found[label] = found.get(label, 0) + 1
        return found

    async def _dead_letters(self, request: web.Request) -> web.Response:
        return _json(list(self._recorder.dead.values()))

    async def _conversations(self, request: web.Request) -> web.Response:
        query = request.query
        limit = int(asked) if (asked := query.get("limit", "")[:9]).isdecimal() else 50
        ledger = self._recorder.ledger
        found = conversations(
            ledger,
            self._recorder.conversations,
            scenario=query.get("scenario") or None,
            reason=query.get("reason") or None,
            session=query.get("session") or None,
            limit=min(limit, 500),
            expired_before=time.time() - self._ttl,
        )
        return _json({"conversations": found, "scenarios": ledger.scenario_names(), "reasons": reasons(ledger)})

    async def _home(self, request: web.Request) -> web.Response:
        raise web.HTTPFound("/" + (f"?{request.query_string}" if request.query_string else ""))

    async def _page(self, request: web.Request) -> web.Response:
        page = files("services.monitor").joinpath("inspector.html").read_text("utf-8")
        policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'"
        return web.Response(text=page, content_type="text/html", headers={"Content-Security-Policy": policy})


def _json(document: Any) -> web.Response:
    return web.Response(body=msgspec.json.encode(document), content_type="application/json")
