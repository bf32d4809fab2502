"""Tokens and limits over HTTP, TLS on both sides, credentials that stay on their side."""

from __future__ import annotations

import asyncio
import json
import ssl
from hashlib import sha256
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from libs.errors import ConfigError
from tests.integration.gateway.harness import Upstream, gateway
from tests.integration.gateway.tls import Authority

pytestmark = pytest.mark.integration

CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"
ROUTES = [CHAT, MESSAGES, "/v1/responses", "/v1/completions", "/v1/embeddings", "/v1/models", "/unknown"]


def tokens(**rules: Any) -> str:
    return json.dumps({sha256(token.encode()).hexdigest(): rule for token, rule in rules.items()})


async def fine(_request: web.Request, _body: bytes) -> web.StreamResponse:
    return web.json_response({"id": "c", "choices": []})


async def status(url: str, path: str, data: bytes = b"{}", **headers: str) -> tuple[int, dict[str, Any]]:
    names = {k.replace("_", "-"): v for k, v in headers.items()}
    async with aiohttp.ClientSession() as session, session.post(url + path, data=data, headers=names) as response:
        return response.status, json.loads(await response.read())


@pytest.mark.parametrize("path", ROUTES)
async def test_no_route_is_open_without_a_token(path: str, tmp_path: Path) -> None:
    async with Upstream(fine).running() as up, gateway(up.url, tmp_path, gateway_tokens=tokens(good="acme")) as served:
        for headers in ({}, {"authorization": "Bearer bad"}, {"x_api_key": "bad"}, {"authorization": "good"}):
            code, body = await status(served.url, path, **headers)
            assert code == 401
            assert "bad" not in str(body)
        assert up.seen == []
        for headers in ({"authorization": "Bearer good"}, {"x_api_key": "good"}):
            assert (await status(served.url, path, **headers))[0] == 200
        assert all("good" not in str(seen.headers) for seen in up.seen)


async def test_health_needs_no_token(tmp_path: Path) -> None:
    async with (
        gateway("http://127.0.0.1:9", tmp_path, gateway_tokens=tokens(good="a")) as served,
        aiohttp.ClientSession() as session,
    ):
        for path in ("/healthz", "/readyz", "/metrics"):
            async with session.get(served.url + path) as response:
                assert response.status == 200


async def test_errors_come_in_the_providers_form(tmp_path: Path) -> None:
    async with gateway("http://127.0.0.1:9", tmp_path, gateway_tokens=tokens(good="a")) as served:
        _, openai = await status(served.url, CHAT)
        _, anthropic = await status(served.url, MESSAGES)
    assert openai["error"]["type"] == "authentication_error" and openai["error"]["code"] == "unauthorized"
    assert anthropic["type"] == "error" and anthropic["error"]["type"] == "authentication_error"


async def test_a_body_over_the_tenants_limit_is_refused_unread(tmp_path: Path) -> None:
    limits = tokens(small={"tenant": "a", "max_body_bytes": 1000}, large="b")
    async with Upstream(fine).running() as up, gateway(up.url, tmp_path, gateway_tokens=limits) as served:
        body = b'{"x":"' + b"y" * 2000 + b'"}'
        assert (await status(served.url, CHAT, body, authorization="Bearer small"))[0] == 413
        assert (await status(served.url, CHAT, body, authorization="Bearer large"))[0] == 200

        async def pieces() -> Any:
            yield body[:600]
            yield body[600:]

        headers = {"authorization": "Bearer small"}
        async with (
            aiohttp.ClientSession() as session,
            session.post(served.url + CHAT, data=pieces(), headers=headers) as response,
        ):
            assert response.status == 413
    assert len(up.seen) == 1


async def test_concurrency_and_rate_are_per_tenant(tmp_path: Path) -> None:
    started, go_on = asyncio.Event(), asyncio.Event()

    async def slow(request: web.Request, body: bytes) -> web.StreamResponse:
        started.set()
        await go_on.wait()
        return await fine(request, body)

    limits = tokens(a={"tenant": "a", "concurrent_requests": 1}, b={"tenant": "b", "requests_per_minute": 1})
    async with Upstream(slow).running() as up, gateway(up.url, tmp_path, gateway_tokens=limits) as served:
        first = asyncio.create_task(status(served.url, CHAT, authorization="Bearer a"))
        await asyncio.wait_for(started.wait(), 10)
        assert (await status(served.url, CHAT, authorization="Bearer a"))[1]["error"]["code"] == "too_many_open"
        go_on.set()
        assert (await first)[0] == 200
        assert (await status(served.url, CHAT, authorization="Bearer b"))[0] == 200
        assert (await status(served.url, CHAT, authorization="Bearer b"))[0] == 429


async def test_tenants_are_stable_hashes_in_the_record(tmp_path: Path) -> None:
    limits = tokens(one="acme", two="acme", three="other")
    async with Upstream(fine).running() as up, gateway(up.url, tmp_path, gateway_tokens=limits) as served:
        for token in ("one", "two", "three"):
            await status(served.url, CHAT, authorization=f"Bearer {token}")
        one, two, three = await served.records()
    assert one.tenant == two.tenant != three.tenant
    assert "acme" not in one.tenant


async def test_an_error_text_with_a_key_is_masked_on_every_route(tmp_path: Path) -> None:
    async def quotes(request: web.Request, _body: bytes) -> web.StreamResponse:
        key = request.headers.get("Authorization", request.headers.get("x-api-key", ""))
        return web.json_response({"error": f"bad key {key} for sk-client-key"}, status=401)

    async with (
        Upstream(quotes).running() as up,
        gateway(up.url, tmp_path, gateway_upstream_api_key="sk-upstream-key") as served,
    ):
        for path in ROUTES:
            code, body = await status(served.url, path, authorization="Bearer sk-client-key")
            assert code == 401 and "key [redacted]" in body["error"].replace("Bearer ", "") and "sk-" not in str(body)
        assert "sk-" not in str(await served.records())


async def test_tls_to_the_client_and_to_the_upstream(tmp_path: Path) -> None:
    ours = Authority(tmp_path / "ours")
    tls = {"gateway_tls_cert_file": str(ours.cert_file), "gateway_tls_key_file": str(ours.key_file)}
    trusting = ssl.create_default_context(cafile=ours.ca_file)
    async with (
        Upstream(fine).running() as plain,
        gateway(plain.url, tmp_path / "inner", **tls) as inner,
        gateway(inner.url, tmp_path / "outer", gateway_upstream_ca_file=str(ours.ca_file), **tls) as outer,
        gateway(inner.url, tmp_path / "doubting") as doubting,
        aiohttp.ClientSession() as session,
    ):
        assert outer.url.startswith("https://")
        async with session.post(outer.url + CHAT, json={}, ssl=trusting) as response:
            assert response.status == 200
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await session.post(outer.url + CHAT, json={})
        async with session.post(doubting.url + CHAT, json={}) as response:
            assert response.status == 502  # the upstream's certificate is not trusted


@pytest.mark.parametrize("setting", ["gateway_tls_cert_file", "gateway_upstream_ca_file"])
async def test_a_missing_certificate_is_named(setting: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"CLAWBACK_{setting.upper()}"):
        async with gateway("http://127.0.0.1:9", tmp_path, **{setting: str(tmp_path / "none.pem")}):
            pass


async def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    async with gateway("http://127.0.0.1:9", tmp_path / "a") as served:
        port = int(served.url.rpartition(":")[2])
        with pytest.raises(ConfigError, match="CLAWBACK_HTTP_PORT"):
            async with gateway("http://127.0.0.1:9", tmp_path / "b", http_port=port):
                pass
