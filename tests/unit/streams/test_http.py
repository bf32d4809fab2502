"""Health and metrics over real HTTP."""

from __future__ import annotations

import asyncio
import json

import aiohttp
import pytest
from aiohttp import web

from libs.errors import ConfigError, RetryError
from libs.streams import http
from libs.streams.config import ServiceSettings
from libs.telemetry import metrics  # noqa: F401  (what /metrics shows)


async def fetch(url: str, accept: str = "") -> tuple[int, str, str]:
    async with aiohttp.ClientSession() as session, session.get(url, headers={"accept": accept}) as answer:
        return answer.status, await answer.text(), answer.headers["content-type"]


async def test_ready_only_when_every_check_passes() -> None:
    away = True

    async def redis() -> None:
        if away:
            raise RetryError("redis: connection refused", reason="test")

    async def kafka() -> None:
        return None

    app = web.Application()
    http.health_routes(app, {"redis": redis, "kafka": kafka})
    async with http.listening(app, ServiceSettings()) as port:
        base = f"http://127.0.0.1:{port}"
        status, text, _ = await fetch(f"{base}/readyz")
        assert status == 503
        assert json.loads(text) == {
            "ready": False,
            "checks": {"redis": "redis: connection refused", "kafka": "ok"},
        }
        assert (await fetch(f"{base}/healthz"))[0] == 200
        away = False
        assert (await fetch(f"{base}/readyz"))[0] == 200


async def test_a_check_that_hangs_is_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "_CHECK_SECONDS", 0.01)

    async def hang() -> None:
        await asyncio.Event().wait()

    app = web.Application()
    http.health_routes(app, {"redis": hang})
    async with http.listening(app, ServiceSettings()) as port:
        status, text, _ = await fetch(f"http://127.0.0.1:{port}/readyz")
    assert status == 503
    assert "no answer within" in text


async def test_metrics_in_the_form_that_is_asked_for() -> None:
    app = web.Application()
    http.health_routes(app, {})
    async with http.listening(app, ServiceSettings()) as port:
        _, text, kind = await fetch(f"http://127.0.0.1:{port}/metrics")
        assert "clawback_records_total" in text
        assert kind.startswith("text/plain")
        _, text, kind = await fetch(f"http://127.0.0.1:{port}/metrics", "application/openmetrics-text; version=1.0.0")
        assert kind.startswith("application/openmetrics-text")
        assert text.endswith("# EOF\n")


async def test_a_taken_port_is_named_with_the_fix() -> None:
    async with http.listening(web.Application(), ServiceSettings()) as port:
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port}.*choose another"):
            async with http.listening(web.Application(), ServiceSettings(http_port=port)):
                raise AssertionError("two servers on one port")
