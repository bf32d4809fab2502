"""HTTP of the monitor: health, metrics, the status document and the Inspector. Read-only."""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib.resources import files
from typing import Any

import msgspec
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from services.monitor.config import MonitorSettings
from services.monitor.handler import Recorder
from services.monitor.inspector import conversations, reasons
from services.monitor.lag import Lags
from services.monitor.status import refresh_gauges, status


class Web:
    """Routes over one recorder. `ready` tells whether the tables have been recovered."""

    def __init__(self, settings: MonitorSettings, recorder: Recorder, *, ready: Callable[[], bool]) -> None:
        self.lags: Lags = {}
        self._ttl = settings.monitor_session_ttl_seconds
        self._recorder = recorder
        self._ready = ready

    def application(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/api/status", self._status)
        app.router.add_get("/api/conversations", self._conversations)
        app.router.add_get("/api/dead-letters", self._dead_letters)
        app.router.add_get("/", self._page)
        return app

    async def _healthz(self, request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _readyz(self, request: web.Request) -> web.Response:
        ready = self._ready()
        return web.Response(status=200 if ready else 503, text="ready\n" if ready else "recovering tables\n")

    async def _metrics(self, request: web.Request) -> web.Response:
        refresh_gauges(self._recorder.ledger, ttl_seconds=self._ttl, now=time.time())
        return web.Response(body=generate_latest(), headers={"Content-Type": CONTENT_TYPE_LATEST})

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
        limit = int(query["limit"]) if query.get("limit", "").isdigit() else 50
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

    async def _page(self, request: web.Request) -> web.Response:
        page = files("services.monitor").joinpath("inspector.html").read_text("utf-8")
        policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'"
        return web.Response(text=page, content_type="text/html", headers={"Content-Security-Policy": policy})


def _json(document: Any) -> web.Response:
    return web.Response(body=msgspec.json.encode(document), content_type="application/json")
