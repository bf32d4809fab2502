"""Requests that never become one: unreadable, broken off in the middle, or never finished."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from structlog.testing import capture_logs

from libs.telemetry import metrics
from services.gateway import proxy as proxy_module
from services.gateway.access import Access
from tests.integration.gateway.harness import Running, Upstream, gateway

pytestmark = pytest.mark.integration

CANARY = b"sk-canary-Hx7Qm2Vt9Rz4Lp8W"
POST = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + CANARY + b"\r\n"


async def fine(request: web.Request, body: bytes) -> web.StreamResponse:
    return web.json_response({"id": "c", "choices": []})


def rejected(reason: str) -> float:
    return float(metrics.GATEWAY_REJECTED.labels(reason)._value.get())


class Client:
    """A bare TCP client."""

    def __init__(self, served: Running) -> None:
        host, port = served.url.removeprefix("http://").split(":")
        self._address = host, int(port)

    async def __aenter__(self) -> Client:
        self.reader, self.writer = await asyncio.open_connection(*self._address)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.close()

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def to_the_end(self) -> tuple[int, dict[str, str], Any]:
        """Status, headers and JSON of the answer after which the gateway closed the connection."""
        async with asyncio.timeout(20):
            text = (await self.reader.read()).decode()
        head, _, body = text.partition("\r\n\r\n")
        line, *rest = head.split("\r\n")
        headers = {k.lower(): v for k, _, v in (h.partition(": ") for h in rest)}
        return int(line.split()[1]), headers, json.loads(body)


UNREADABLE = {
    "no request line": (b"NONSENSE " + CANARY + b"\r\n\r\n", 400, "malformed_request"),
    "TLS on a plain port": (b"\x16\x03\x01\x02\x00\x01\x00", 400, "malformed_request"),
    "unknown version": (b"GET /v1/models HTTP/9.9\r\nHost: x\r\n\r\n", 400, "malformed_request"),
    "a header with a NUL": (POST[:-2] + b"\x00\r\n\r\n", 400, "malformed_request"),
    "a header too large": (POST + b"X-A: " + CANARY * 400 + b"\r\n\r\n", 431, "header_too_large"),
    "a path too large": (b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 431, "header_too_large"),
    "too many headers": (POST + b"".join(b"X-%d: a\r\n" % n for n in range(300)) + b"\r\n", 431, "header_too_large"),
    "a length that is none": (POST + b"Content-Length: ten\r\n\r\n{}", 400, "malformed_request"),
    "a negative length": (POST + b"Content-Length: -5\r\n\r\n{}", 400, "malformed_request"),
    "two lengths": (POST + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}", 400, "malformed_request"),
    "length and chunks": (
        POST + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
        400,
        "malformed_request",
    ),
    "a chunk size that is none": (POST + b"Transfer-Encoding: chunked\r\n\r\nZZ\r\n", 400, "malformed_request"),
}


@pytest.mark.parametrize("name", UNREADABLE)
async def test_an_unreadable_request_is_refused_in_json(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sent, status, reason = UNREADABLE[name]
    before = rejected(reason)
    async with Upstream(fine).running() as up, gateway(up.url, tmp_path) as served, Client(served) as client:
        caplog.clear()
        with capture_logs() as lines:
            client.send(sent)
            got, headers, body = await client.to_the_end()
    assert (got, headers["content-type"], headers["x-clawback-error"]) == (status, "application/json", reason)
    assert body["error"]["code"] == reason and body["error"]["type"] == "invalid_request_error"
    assert rejected(reason) == before + 1
    refused = [line for line in lines if line.get("module") == "gateway.connections"]
    assert [line["event"] for line in refused] == ["request_refused"] and "exc_info" not in refused[0]
    assert [r for r in caplog.records if r.name.startswith("aiohttp")] == []
    assert CANARY.decode() not in f"{body}{headers}{lines}{caplog.text}"
    assert up.seen == []


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/embeddings"])
async def test_a_chunk_that_breaks_later_ends_the_request(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading = asyncio.Event()

    async def body_of(self: Access, caller: Any, request: web.Request) -> bytes:
        reading.set()
        return await original(self, caller, request)

    original = Access.body
    monkeypatch.setattr(Access, "body", body_of)
    before = rejected("malformed_body")
    head = b"POST " + path.encode() + b" HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n"
    async with Upstream(fine).running() as up, gateway(up.url, tmp_path) as served, Client(served) as client:
        client.send(head)
        await asyncio.wait_for(reading.wait(), 20)
        client.send(b"ZZ\r\n")
        status, headers, body = await client.to_the_end()
        assert await served.records() == []
    assert (status, headers["x-clawback-error"]) == (400, "malformed_body")
    assert body["error"]["type"] == "invalid_request_error" and (body.get("type") == "error") == ("messages" in path)
    assert rejected("malformed_body") == before + 1
    assert up.seen == []


STALLED = {
    "half a request line": b"POST /v1/mess",
    "half of the headers": POST,
    "half of a header": POST + b"Content-Le",
    "no body at all": POST + b"Content-Length: 100\r\n\r\n",
    "half of the body": POST + b"Content-Length: 100\r\n\r\n{",
    "half of the chunks": POST + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n",
}


@pytest.mark.parametrize("name", STALLED)
async def test_a_request_that_stops_coming_is_given_up(name: str, tmp_path: Path) -> None:
    before = rejected("request_timeout")
    settings = {"gateway_receive_timeout_seconds": 0.2}
    async with (
        Upstream(fine).running() as up,
        gateway(up.url, tmp_path, **settings) as served,
        Client(served) as client,
    ):
        client.send(STALLED[name])
        status, headers, body = await client.to_the_end()
    assert (status, headers["x-clawback-error"]) == (408, "request_timeout")
    assert body["error"]["code"] == "request_timeout"
    assert rejected("request_timeout") == before + 1
    assert up.seen == []


async def test_half_a_second_request_is_given_up_too(tmp_path: Path) -> None:
    """Behind an answer on the same connection."""
    whole = POST + b"Content-Length: 2\r\n\r\n{}"
    settings = {"gateway_receive_timeout_seconds": 0.2}
    async with (
        Upstream(fine).running() as up,
        gateway(up.url, tmp_path, **settings) as served,
        Client(served) as client,
    ):
        client.send(whole)
        assert (await client.reader.readuntil(b'"choices": []}')).startswith(b"HTTP/1.1 200")
        client.send(whole[:50])
        status, _, _ = await client.to_the_end()
    assert status == 408 and len(up.seen) == 1


async def test_a_slow_upstream_does_not_count_as_a_slow_client(tmp_path: Path) -> None:
    go_on = asyncio.Event()

    async def slow(request: web.Request, body: bytes) -> web.StreamResponse:
        asyncio.get_running_loop().call_later(0.3, go_on.set)  # longer than the client may be silent
        await go_on.wait()
        return await fine(request, body)

    settings = {"gateway_receive_timeout_seconds": 0.05}
    async with (
        Upstream(slow).running() as up,
        gateway(up.url, tmp_path, **settings) as served,
        Client(served) as client,
    ):
        client.send(POST + b"Connection: close\r\nContent-Length: 2\r\n\r\n{}")
        status, _, _ = await client.to_the_end()
    assert status == 200


@pytest.mark.parametrize(
    ("sent", "status"),
    [(b"CONNECT other:443 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 404), (POST + b"Expect: x\r\n", 417)],
)
async def test_what_the_server_itself_refuses_is_json(sent: bytes, status: int, tmp_path: Path) -> None:
    async with Upstream(fine).running() as up, gateway(up.url, tmp_path) as served, Client(served) as client:
        client.send(sent if sent.endswith(b"\r\n\r\n") else sent + b"Connection: close\r\nContent-Length: 0\r\n\r\n")
        got, _, body = await client.to_the_end()
    assert got == status and body["error"]["code"]


async def test_a_fault_of_our_own_is_one_line_without_the_conversation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def faulty(*_: object, **__: object) -> Any:
        raise KeyError(CANARY.decode())

    monkeypatch.setattr(proxy_module, "capture_for", faulty)
    before = rejected("internal_error")
    async with Upstream(fine).running() as up, gateway(up.url, tmp_path) as served, Client(served) as client:
        with capture_logs() as lines:
            client.send(POST + b"Content-Length: 2\r\n\r\n{}")
            status, _, body = await client.to_the_end()
    assert status == 500 and body["error"]["type"] == "server_error"
    assert rejected("internal_error") == before + 1
    (line,) = [x for x in lines if x["event"] == "request_failed"]
    assert line["error"] == "KeyError" and "test_gateway_connections.py:" in line["where"]
    assert CANARY.decode() not in f"{body}{lines}{caplog.text}"
