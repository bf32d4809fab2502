"""What the upstream sends is what the client gets, and the other way round, byte for byte."""

from __future__ import annotations

import gzip
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import cramjam
import pytest
from aiohttp import web

from tests.integration.gateway.harness import Upstream, chat_chunk, gateway, sse, stream_bytes

pytestmark = pytest.mark.integration

JSON = {"Content-Type": "application/json"}
LIMITS = {"x-ratelimit-remaining-requests": "59", "retry-after": "7", "request-id": "req_1"}
ODD = b'{ "id":"c1" ,"choices":[ ],\n "unknown":{"n":1.50e+3,"s":"\\u00e9\\/"},"usage":null }\n'
COMMENTED = (
    b": OPENROUTER PROCESSING\n\n"
    + sse(chat_chunk("Hé", role="assistant"), done=False)
    + b"event: ping\ndata: {}\n\n"
    + sse({"id": "c", "choices": []}, chat_chunk("llo", "stop"), {"id": "c", "choices": [], "usage": {"total": 3}})
)
CRLF = COMMENTED.replace(b"\n", b"\r\n")
ANTHROPIC = (
    b'event: message_start\ndata: {"type":"message_start","message":{"id":"m","role":"assistant","content":[]}}\n\n'
    b'event: ping\ndata: {"type": "ping"}\n\n'
    b'event: content_block_start\ndata: {"type":"content_block_start","index":0,"content_block":{"type":"tool_use",'
    b'"id":"t","name":"ls","input":{}}}\n\n'
    b'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,"delta":{"type":"input_json_delta",'
    b'"partial_json":"{\\"a\\": \\u00e9"}}\n\n'
    b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error","message":"busy"}}\n\n'
)
RESPONSES = (
    b'event: response.created\ndata: {"type":"response.created","sequence_number":0,"response":{"id":"r"}}\n\n'
    b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","delta":"H\\u00e9","x":[ ]}\n\n'
    b'event: response.completed\ndata: {"type":"response.completed","response":{"id":"r","output":[]}}\n\n'
)
CHOICES = sse(
    {"id": "c", "choices": [{"index": 1, "delta": {"content": "b"}, "logprobs": {"content": [{"token": "b"}]}}]},
    {
        "id": "c",
        "choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, "id": "t", "function": {"name": "f"}}]}}],
    },
    {"id": "c", "choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]},
    {"id": "c", "choices": [{"index": 1, "delta": {}, "finish_reason": "stop"}]},
)
BIG = json.dumps({"blob": "x" * 3_000_000}).encode()

# name: (path, status, headers, body)
ANSWERS: dict[str, tuple[str, int, dict[str, str], bytes]] = {
    "odd json": ("/v1/chat/completions", 200, JSON, ODD),
    "rate limit": ("/v1/chat/completions", 429, {**JSON, **LIMITS}, b'{"error": {"message":"slow down"}}'),
    "html error": ("/v1/responses", 503, {"Content-Type": "text/html"}, b"<h1>busy</h1>"),
    "anthropic error": ("/v1/messages", 529, JSON, b'{"type":"error","error":{"type":"overloaded_error"}}'),
    "gzip": ("/v1/chat/completions", 200, {**JSON, "Content-Encoding": "gzip"}, gzip.compress(ODD, mtime=0)),
    "brotli": ("/v1/messages", 200, {**JSON, "Content-Encoding": "br"}, bytes(cramjam.brotli.compress(ODD))),
    "zstd error": ("/v1/completions", 400, {**JSON, "Content-Encoding": "zstd"}, bytes(cramjam.zstd.compress(ODD))),
    "big": ("/v1/chat/completions", 200, JSON, BIG),
    "embeddings": ("/v1/embeddings", 200, {**JSON, **LIMITS}, b'{"data":[{"embedding":[0.10,-1e-9]}]}'),
    "count tokens": ("/v1/messages/count_tokens?beta=true", 200, JSON, b'{"input_tokens":3}'),
    "unknown route": ("/v1/audio/speech?x=%2Fy", 201, {"Content-Type": "audio/mpeg"}, bytes(range(256)) * 40),
    "no content": ("/v1/threads/1", 204, {}, b""),
}
STREAMS: dict[str, tuple[str, dict[str, str], bytes]] = {
    "comments and pings": ("/v1/chat/completions", LIMITS, COMMENTED),
    "crlf": ("/v1/chat/completions", {}, CRLF),
    "no done": ("/v1/chat/completions", {}, sse(chat_chunk("a", "stop"), done=False)),
    "content in the last chunk": ("/v1/chat/completions", {}, sse(chat_chunk("all of it", "stop"))),
    "gzip": ("/v1/chat/completions", {"Content-Encoding": "gzip"}, gzip.compress(COMMENTED, mtime=0)),
    "messages": ("/v1/messages", LIMITS, ANTHROPIC),
    "responses": ("/v1/responses", LIMITS, RESPONSES),
    "completions": ("/v1/completions", {}, sse({"id": "c", "choices": [{"index": 0, "text": "a"}]})),
    "several choices and logprobs": ("/v1/chat/completions", {}, CHOICES),
    "unknown route": ("/v1/threads/runs", {}, b"event: thread.run\ndata: {}\n\n"),
}


@pytest.fixture(params=["builtin", "none"])
async def ends(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[tuple[Upstream, str, str]]:
    """An upstream whose answer the test sets, the gateway's URL and the upstream's own."""

    async def unset(_request: web.Request, _body: bytes) -> web.StreamResponse:
        raise AssertionError("the test sets the answer")

    async with (
        Upstream(unset).running() as upstream,
        gateway(upstream.url, tmp_path / "spool", gateway_capture=request.param) as served,
    ):
        yield upstream, served.url, upstream.url


async def fetch(
    session: aiohttp.ClientSession, method: str, url: str, **more: Any
) -> tuple[int, str, dict[str, str], bytes]:
    async with session.request(method, aiohttp.client.URL(url, encoded=True), **more) as response:
        ours = {"date", "server", "x-clawback-exchange-id", "connection", "transfer-encoding"}
        headers = {k.lower(): v for k, v in response.headers.items() if k.lower() not in ours}
        return response.status, response.reason or "", headers, await response.read()


@pytest.mark.parametrize("name", ANSWERS)
async def test_whole_answers(name: str, ends: tuple[Upstream, str, str]) -> None:
    upstream, through, direct = ends
    path, status, headers, body = ANSWERS[name]

    async def answer(_request: web.Request, _body: bytes) -> web.StreamResponse:
        return web.Response(status=status, headers=headers, body=body or None, reason="As It Was")

    upstream.answer = answer
    async with aiohttp.ClientSession(auto_decompress=False) as session:
        straight = await fetch(session, "POST", direct + path, json={"messages": []})
        proxied = await fetch(session, "POST", through + path, json={"messages": []})
    assert proxied == straight
    assert proxied[3] == body
    assert upstream.seen[0].target == upstream.seen[1].target == path


@pytest.mark.parametrize("name", STREAMS)
async def test_streams(name: str, ends: tuple[Upstream, str, str]) -> None:
    upstream, through, direct = ends
    path, headers, body = STREAMS[name]

    async def answer(request: web.Request, _body: bytes) -> web.StreamResponse:
        return await stream_bytes(request, *(body[i : i + 7] for i in range(0, len(body), 7)), headers=headers)

    upstream.answer = answer
    async with aiohttp.ClientSession(auto_decompress=False) as session:
        straight = await fetch(session, "POST", direct + path, json={"stream": True})
        proxied = await fetch(session, "POST", through + path, json={"stream": True})
    assert proxied == straight
    assert proxied[3] == body


@pytest.mark.parametrize("method", ["GET", "PUT", "PATCH", "DELETE", "OPTIONS", "HEAD"])
async def test_other_methods(method: str, ends: tuple[Upstream, str, str]) -> None:
    upstream, through, direct = ends

    async def answer(request: web.Request, body: bytes) -> web.StreamResponse:
        return web.Response(headers={"Content-Type": "text/plain", "x-len": str(len(body))}, body=b"fine")

    upstream.answer = answer
    async with aiohttp.ClientSession(auto_decompress=False) as session:
        for path in ("/v1/models", "/v1/chat/completions", "/anything/at%20all?q=a%2Bb&q="):
            straight = await fetch(session, method, direct + path, data=b"body")
            assert await fetch(session, method, through + path, data=b"body") == straight
    assert {s.method for s in upstream.seen} == {method}
    assert [s.target for s in upstream.seen[::2]] == [s.target for s in upstream.seen[1::2]]


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (b'{ "model" : "m",\n"messages":[{"role":"user","content":"\\u00e9"}],"x":1.0e2}\n', JSON),
        (b"{not json", JSON),
        (gzip.compress(b'{"messages":[]}', mtime=0), {**JSON, "Content-Encoding": "gzip"}),
        (b'{"messages":[{"content":"' + b"y" * 3_000_000 + b'"}]}', JSON),
        (b"", {"Content-Type": "text/plain; charset=latin-1"}),
    ],
    ids=["odd spacing", "no json", "gzip", "3 MB", "empty"],
)
async def test_requests_arrive_unchanged(body: bytes, headers: dict[str, str], ends: tuple[Upstream, str, str]) -> None:
    upstream, through, direct = ends

    async def answer(_request: web.Request, _body: bytes) -> web.StreamResponse:
        return web.Response(body=ODD, headers=JSON)

    upstream.answer = answer
    more = {**headers, "anthropic-beta": "a,b", "x-unknown": "kept", "User-Agent": "agent/1"}
    async with aiohttp.ClientSession(auto_decompress=False, skip_auto_headers=["Accept", "Accept-Encoding"]) as session:
        for base in (direct, through):
            await fetch(session, "POST", f"{base}/v1/chat/completions?a=b%20c", data=body, headers=more)
    straight, proxied = upstream.seen
    assert proxied.body == straight.body == body
    assert proxied.target == straight.target
    added = {"host", "x-clawback-capture", "accept-encoding", "accept", "connection"}
    assert {k: v for k, v in proxied.headers.items() if k not in added} == {
        k: v for k, v in straight.headers.items() if k not in added
    }


async def test_connections_are_kept_alive_on_both_sides(ends: tuple[Upstream, str, str]) -> None:
    upstream, through, _ = ends
    peers: list[Any] = []

    async def answer(request: web.Request, _body: bytes) -> web.StreamResponse:
        assert request.transport is not None
        peers.append(request.transport.get_extra_info("peername"))
        return web.Response(body=ODD, headers=JSON)

    upstream.answer = answer
    created = 0

    async def count(*_: Any) -> None:
        nonlocal created
        created += 1

    trace = aiohttp.TraceConfig()
    trace.on_connection_create_end.append(count)
    async with aiohttp.ClientSession(trace_configs=[trace]) as session:
        for _ in range(5):
            await fetch(session, "POST", f"{through}/v1/chat/completions", json={})
    assert created == 1
    assert len(set(peers)) == 1


async def test_a_chunked_request_body(ends: tuple[Upstream, str, str]) -> None:
    upstream, through, _ = ends

    async def answer(_request: web.Request, _body: bytes) -> web.StreamResponse:
        return web.Response(body=ODD, headers=JSON)

    async def pieces() -> AsyncIterator[bytes]:
        yield b'{"messages":'
        yield b"[]}"

    upstream.answer = answer
    async with aiohttp.ClientSession() as session:
        for path in ("/v1/chat/completions", "/v1/embeddings"):
            await fetch(session, "POST", through + path, data=pieces())
    assert [s.body for s in upstream.seen] == [b'{"messages":[]}'] * 2


async def test_a_base_url_without_v1_reaches_the_same_routes(ends: tuple[Upstream, str, str]) -> None:
    upstream, through, _ = ends

    async def answer(_request: web.Request, _body: bytes) -> web.StreamResponse:
        return web.Response(body=ODD, headers=JSON)

    upstream.answer = answer
    async with aiohttp.ClientSession() as session:
        _, _, _, body = await fetch(session, "POST", f"{through}/chat/completions", json={})
    assert body == ODD
    assert upstream.seen[0].target == "/chat/completions"


async def test_a_client_that_asks_before_it_sends_its_body(ends: tuple[Upstream, str, str]) -> None:
    """`Expect: 100-continue`, as curl sends it with a large body."""
    upstream, through, _ = ends
    data = b'{"messages":[],"pad":"' + b"x" * 2_000_000 + b'"}'

    async def answer(_request: web.Request, _body: bytes) -> web.StreamResponse:
        return web.Response(body=ODD, headers=JSON)

    upstream.answer = answer
    async with aiohttp.ClientSession() as session:
        for path in ("/v1/chat/completions", "/v1/embeddings"):
            async with session.post(through + path, data=data, expect100=True) as response:
                assert await response.read() == ODD
    assert [s.body for s in upstream.seen] == [data] * 2
    assert not any("expect" in s.headers for s in upstream.seen)
