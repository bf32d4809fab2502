"""What lands in the spool for each exchange, and that the client never waits for it or suffers from it."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from tests.integration.gateway.harness import Running, Upstream, chat_chunk, gateway, sse, stream_bytes

pytestmark = pytest.mark.integration

CHAT = "/v1/chat/completions"
STREAM = [
    sse(chat_chunk("He", role="assistant"), done=False),
    sse(chat_chunk("llo", "stop"), done=False),
    b"data: [DONE]\n\n",
]


def answers(build: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> Upstream:
    async def answer(request: web.Request, _body: bytes) -> web.StreamResponse:
        return await build(request)

    return Upstream(answer)


async def whole(_request: web.Request) -> web.StreamResponse:
    return web.json_response({"id": "c1", "choices": [{"index": 0, "message": {"content": "Hello"}}]})


async def streamed(request: web.Request) -> web.StreamResponse:
    return await stream_bytes(request, *STREAM)


async def post(served: Running, path: str = CHAT, body: Any = None, **headers: str) -> bytes:
    names = {k.replace("_", "-"): v for k, v in headers.items()}
    async with (
        aiohttp.ClientSession() as session,
        session.post(served.url + path, json=body or {"messages": []}, headers=names) as response,
    ):
        return await response.read()


def text_of(response: Any) -> str:
    return str(response["choices"][0]["message"]["content"])


async def test_what_a_record_holds(tmp_path: Path) -> None:
    async with answers(whole).running() as upstream, gateway(upstream.url, tmp_path) as served:
        body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "x": 1.5}
        await post(
            served,
            body=body,
            authorization="Bearer secret-token",
            x_reef_scenario="maths",
            x_reef_tag_session="s1",
            x_reef_tag_user="u",
            X_Session_Id="42",
            X_Turn_Type="main",
            Cookie="a=b",
        )
        record = await served.record()
    assert record.request == body
    assert text_of(record.response) == "Hello"
    assert (record.scenario, record.path, record.outcome, record.release_id) == ("maths", CHAT, "completed", "base")
    assert record.received_at <= record.completed_at
    expected = {"x-reef-scenario": "maths", "x-reef-tag-session": "s1", "x-reef-tag-user": "u", "x-turn-type": "main"}
    assert expected.items() <= record.headers.items()
    assert record.headers["x-session-id"] == "42"
    assert "cookie" not in record.headers and "authorization" not in record.headers
    assert record.tenant and "secret-token" not in str(record)


async def test_exchange_ids_sort_by_time_and_are_told_to_the_client(tmp_path: Path) -> None:
    async with answers(whole).running() as upstream, gateway(upstream.url, tmp_path) as served:
        told = []
        async with aiohttp.ClientSession() as session:
            for _ in range(5):
                async with session.post(served.url + CHAT, json={}) as response:
                    told.append(response.headers["x-clawback-exchange-id"])
        assert [r.exchange_id for r in await served.records()] == told == sorted(told)


async def test_a_stream_is_recorded_before_the_client_has_its_end(tmp_path: Path) -> None:
    hold = asyncio.Event()

    async def waits_after_done(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for piece in STREAM:
            await response.write(piece)
        await hold.wait()  # the connection stays open behind [DONE], as some servers leave it
        return response

    async with answers(waits_after_done).running() as upstream, gateway(upstream.url, tmp_path) as served:
        async with (
            aiohttp.ClientSession() as session,
            session.post(served.url + CHAT, json={"stream": True}) as response,
        ):
            seen = b""
            while b"[DONE]" not in seen:
                seen += await response.content.readany()
            record = await served.record()
        hold.set()
        assert text_of(record.response) == "Hello"
        assert record.outcome == "completed"
        await served.record()  # and stays the only one


async def test_a_stream_that_breaks_off_is_cut_for_the_client_and_recorded(tmp_path: Path) -> None:
    async def breaks(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(STREAM[0])
        assert request.transport is not None
        request.transport.close()
        return response

    async with answers(breaks).running() as upstream, gateway(upstream.url, tmp_path) as served:
        with pytest.raises(aiohttp.ClientPayloadError):
            await post(served)
        record = await served.record()
    assert record.outcome == "upstream_error"
    assert text_of(record.response) == "He"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_cancels_the_upstream(stream: bool, tmp_path: Path) -> None:
    cancelled, started = asyncio.Event(), asyncio.Event()

    async def never_ends(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        try:
            if stream:
                await response.prepare(request)
                await response.write(STREAM[0])
            started.set()
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return response

    async with answers(never_ends).running() as upstream, gateway(upstream.url, tmp_path) as served:
        async with aiohttp.ClientSession() as session:
            call = asyncio.create_task(session.post(served.url + CHAT, json={"stream": stream}))
            async with asyncio.timeout(10):
                await started.wait()
                if stream:
                    response = await call
                    assert await response.content.readany() == STREAM[0]
                    response.close()
                else:
                    call.cancel()
                await cancelled.wait()
        await served.until_recorded()
        record = await served.record()
    assert record.outcome == "client_gone"
    assert (text_of(record.response) == "He") if stream else (record.response is None)


@pytest.mark.parametrize("status", [400, 401, 429, 500])
async def test_an_upstreams_error_is_recorded_as_such(status: int, tmp_path: Path) -> None:
    async def fails(_request: web.Request) -> web.StreamResponse:
        return web.json_response({"error": {"message": "no"}}, status=status)

    async with answers(fails).running() as upstream, gateway(upstream.url, tmp_path) as served:
        assert json.loads(await post(served)) == {"error": {"message": "no"}}
        record = await served.record()
    assert record.outcome == "upstream_error"
    assert record.response == {"error": {"message": "no"}}


@pytest.mark.parametrize(("path", "shape"), [(CHAT, ["error"]), ("/v1/messages", ["error", "type"])])
async def test_an_upstream_that_is_away(path: str, shape: list[str], tmp_path: Path) -> None:
    async with gateway("http://127.0.0.1:9", tmp_path) as served:
        error = json.loads(await post(served, path))
        record = await served.record()
    assert sorted(error) == shape
    assert "upstream" in error["error"]["message"]
    assert record.outcome == "upstream_error" and record.response == error


async def test_a_silent_upstream_is_given_up(tmp_path: Path) -> None:
    async def silent(_request: web.Request) -> web.StreamResponse:
        await asyncio.Event().wait()
        raise AssertionError

    async with (
        answers(silent).running() as upstream,
        gateway(upstream.url, tmp_path, gateway_read_timeout_seconds=0.2) as served,
    ):
        assert json.loads(await post(served))["error"]["code"] == "upstream_timeout"
        assert (await served.record()).outcome == "upstream_error"
    assert len(upstream.seen) == 1  # the upstream may be at work: not asked twice


async def test_a_connection_that_closed_meanwhile_is_tried_again(tmp_path: Path) -> None:
    async def drops_once(request: web.Request) -> web.StreamResponse:
        if len(upstream.seen) == 1:
            assert request.transport is not None
            request.transport.abort()
        return await whole(request)

    upstream = answers(drops_once)
    async with upstream.running(), gateway(upstream.url, tmp_path, gateway_retries=1) as served:
        assert text_of(json.loads(await post(served))) == "Hello"
        assert len(upstream.seen) == 2
        assert (await served.record()).outcome == "completed"


async def test_statuses_to_retry_are_configurable(tmp_path: Path) -> None:
    async def busy_once(request: web.Request) -> web.StreamResponse:
        return web.Response(status=503) if len(upstream.seen) == 1 else await whole(request)

    upstream = answers(busy_once)
    async with upstream.running(), gateway(upstream.url, tmp_path, gateway_retry_statuses="502,503") as served:
        assert text_of(json.loads(await post(served))) == "Hello"
        assert len(await served.records()) == 1


async def test_record_off_is_served_and_not_kept(tmp_path: Path) -> None:
    async with answers(streamed).running() as upstream, gateway(upstream.url, tmp_path) as served:
        assert await post(served, x_clawback_record="off") == b"".join(STREAM)
        assert await served.records() == []
        assert "x-clawback-record" not in upstream.seen[0].headers
        assert "x-clawback-capture" not in upstream.seen[0].headers


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/messages/count_tokens", "/v1/models", "/unknown"])
async def test_other_routes_are_not_recorded(path: str, tmp_path: Path) -> None:
    async with answers(whole).running() as upstream, gateway(upstream.url, tmp_path) as served:
        await post(served, path)
        assert await served.records() == []


async def test_compressed_exchanges_are_recorded_open(tmp_path: Path) -> None:
    async def packed(request: web.Request) -> web.StreamResponse:
        data = gzip.compress(b"".join(STREAM), mtime=0)
        pieces = [data[i : i + 9] for i in range(0, len(data), 9)]
        return await stream_bytes(request, *pieces, headers={"Content-Encoding": "gzip"})

    async with answers(packed).running() as upstream, gateway(upstream.url, tmp_path, gateway_capture="none") as served:
        headers = {"Content-Encoding": "gzip", "Content-Type": "application/json"}
        async with aiohttp.ClientSession() as session:
            data = gzip.compress(b'{"messages":[],"stream":true}')
            async with session.post(served.url + CHAT, data=data, headers=headers) as response:
                assert await response.read() == b"".join(STREAM)
        record = await served.record()
    assert record.request == {"messages": [], "stream": True}
    assert text_of(record.response) == "Hello"


async def test_order_within_a_session(tmp_path: Path) -> None:
    """The next request is sent only when the last answer is there: it must be recorded behind it, large or small."""
    async with answers(streamed).running() as upstream, gateway(upstream.url, tmp_path) as served:
        for number, size in enumerate([10, 400_000, 10, 300_000, 10]):
            await post(served, body={"stream": True, "n": number, "pad": "x" * size}, x_session_id="s")
        assert [r.request["n"] for r in await served.records()] == [0, 1, 2, 3, 4]
