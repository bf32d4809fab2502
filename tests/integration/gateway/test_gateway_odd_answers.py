"""Answers that expand, break, nest, err or say nothing: the client gets their bytes, the record tells what came."""

from __future__ import annotations

import gzip
import json
import threading
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from libs.contracts import TrafficRaw
from services.gateway import recorder as recorder_module
from tests.integration.gateway.harness import Upstream, chat_chunk, gateway, sse, stream_bytes
from tests.integration.gateway.test_gateway_bounds import dropped
from tests.integration.gateway.test_gateway_recording import CHAT, answers, text_of, whole

pytestmark = pytest.mark.integration

DEEP = b"[" * 50_000 + b"]" * 50_000
HELLO = b'{"choices":[{"index":0,"message":{"role":"assistant","content":"%s"}}]}'
JSON_TYPE = {"content-type": "application/json"}


def gives(body: bytes, status: int = 200, **headers: str) -> Upstream:
    """An upstream that answers with these bytes."""

    async def answer(_request: web.Request) -> web.StreamResponse:
        sent = JSON_TYPE | {name.replace("_", "-"): value for name, value in headers.items()}
        return web.Response(body=body, status=status, headers=sent)

    return answers(answer)


def streams(*pieces: bytes, **headers: str) -> Upstream:
    async def answer(request: web.Request) -> web.StreamResponse:
        return await stream_bytes(request, *pieces, headers={k.replace("_", "-"): headers[k] for k in headers})

    return answers(answer)


async def exchange(
    upstream: Upstream, directory: Path, *, path: str = CHAT, body: bytes = b"{}", coding: str = "", **settings: Any
) -> tuple[int, bytes, list[TrafficRaw]]:
    """Status and bytes that the client gets, and what was recorded."""
    async with upstream.running(), gateway(upstream.url, directory, **settings) as served:
        headers = {**JSON_TYPE, "accept-encoding": "gzip"} | ({"content-encoding": coding} if coding else {})
        async with (
            aiohttp.ClientSession(auto_decompress=False) as session,
            session.post(served.url + path, data=body, headers=headers, allow_redirects=False) as response,
        ):
            data = await response.read()
        return response.status, data, await served.records()


@pytest.mark.parametrize("streamed", [False, True])
async def test_an_answer_that_expands_over_the_limit_is_served_and_counted(streamed: bool, tmp_path: Path) -> None:
    before = dropped("over_record_limit")
    bomb = gzip.compress(HELLO % (b"0" * 3_000_000), mtime=0)
    upstream = streams(bomb, content_encoding="gzip") if streamed else gives(bomb, content_encoding="gzip")
    settings = {"gateway_capture": "none", "gateway_record_max_bytes": 2_000_000}
    assert await exchange(upstream, tmp_path, **settings) == (200, bomb, [])
    assert dropped("over_record_limit") == before + 1


@pytest.mark.parametrize("coding", ["", "gzip"])
async def test_a_request_over_the_limit_is_served_and_counted(coding: str, tmp_path: Path) -> None:
    before = dropped("over_record_limit")
    body = b'{"x":"' + b"0" * 3_000_000 + b'"}'
    sent = gzip.compress(body) if coding else body
    upstream = answers(whole)
    settings = {"gateway_capture": "vllm", "gateway_record_max_bytes": 2_000_000}
    status, _, records = await exchange(upstream, tmp_path, body=sent, coding=coding, **settings)
    assert (status, records) == (200, [])
    assert not coding or upstream.seen[0].body == sent
    assert dropped("over_record_limit") == before + 1


async def test_a_plain_stream_over_the_limit_is_served_and_counted(tmp_path: Path) -> None:
    before = dropped("over_record_limit")
    pieces = [sse(chat_chunk("x" * 1000), done=False)] * 20 + [sse(chat_chunk("", "stop"))]
    _, data, records = await exchange(streams(*pieces), tmp_path, gateway_record_max_bytes=10_000)
    assert data == b"".join(pieces) and records == []
    assert dropped("over_record_limit") == before + 1


@pytest.mark.parametrize("kind", ["packed", "large", "packed_request"])
async def test_what_may_be_large_is_opened_and_read_in_a_thread(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The event loop's thread never builds such a record."""
    builders: list[bool] = []
    build = recorder_module.Recorder._build

    def noted(self: Any, *given: Any) -> Any:
        builders.append(threading.current_thread() is threading.main_thread())
        return build(self, *given)

    monkeypatch.setattr(recorder_module.Recorder, "_build", noted)
    hello = HELLO % b"Hello"
    upstream = {
        "packed": gives(gzip.compress(hello), content_encoding="gzip"),
        "large": gives(hello + b" " * 300_000),
        "packed_request": gives(hello),
    }[kind]
    coding = "gzip" if kind == "packed_request" else ""
    body = gzip.compress(b"{}") if coding else b"{}"
    _, _, (record,) = await exchange(upstream, tmp_path, body=body, coding=coding, gateway_capture="none")
    assert builders == [False] and text_of(record.response) == "Hello"


@pytest.mark.parametrize("mode", ["none", "builtin", "vllm", "sglang"])
async def test_a_body_nested_beyond_reading_comes_through_and_is_kept_as_text(mode: str, tmp_path: Path) -> None:
    status, data, (record,) = await exchange(gives(DEEP), tmp_path, gateway_capture=mode)
    assert (status, data) == (200, DEEP)
    assert record.response == DEEP.decode() and record.outcome == "upstream_error"


@pytest.mark.parametrize("mode", ["none", "vllm"])
async def test_a_request_nested_beyond_reading_is_served_and_counted(mode: str, tmp_path: Path) -> None:
    before, upstream, body = dropped("nested_too_deeply"), answers(whole), b'{"x":' + DEEP + b"}"
    status, _, records = await exchange(upstream, tmp_path, body=body, gateway_capture=mode)
    assert (status, records) == (200, []) and upstream.seen[0].body == body
    assert dropped("nested_too_deeply") == before + 1


@pytest.mark.parametrize(("sent", "kept"), [(b"a\\ud800b", "a\ufffdb"), (b"a\xffb", "a\ufffdb")])
async def test_text_that_is_no_utf8_is_recorded_with_replacements(sent: bytes, kept: str, tmp_path: Path) -> None:
    body = b'{"messages":[{"role":"user","content":"%s"}]}' % sent
    answer = b"\xef\xbb\xbf" + HELLO % sent
    _, data, (record,) = await exchange(gives(answer), tmp_path, body=body)
    assert data == answer
    assert record.request["messages"][0]["content"] == kept == text_of(record.response)
    assert record.outcome == "completed"


@pytest.mark.parametrize("coding", ["", "gzip"])
async def test_a_stream_under_another_name_is_put_together_if_one_was_asked_for(coding: str, tmp_path: Path) -> None:
    body = sse(chat_chunk("Hel", role="assistant"), chat_chunk("lo", "stop"))
    sent = gzip.compress(body) if coding else body
    for number, (asked, outcome) in enumerate([(b'{"stream":true}', "completed"), (b"{}", "upstream_error")]):
        upstream = gives(sent, content_encoding=coding) if coding else gives(sent)
        _, data, (record,) = await exchange(upstream, tmp_path / str(number), body=asked, gateway_capture="none")
        assert data == sent and record.outcome == outcome
        assert record.response == body.decode() if number else text_of(record.response) == "Hello"


HTML = b"<html>log in first</html>"


@pytest.mark.parametrize(
    ("status", "body", "response"),
    [
        (302, b"", None),
        (307, HELLO % b"moved", json.loads(HELLO % b"moved")),
        (204, b"", None),
        (200, b"", None),
        (200, HTML, HTML.decode()),
        (200, b"7", 7),
        (200, b'{"error":{"message":"overloaded"}}', {"error": {"message": "overloaded"}}),
    ],
)
async def test_an_answer_that_says_nothing_is_not_completed(
    status: int, body: bytes, response: Any, tmp_path: Path
) -> None:
    got, data, (record,) = await exchange(gives(body, status, location="/x"), tmp_path)
    assert (got, data) == (status, body)
    assert (record.outcome, record.response) == ("upstream_error", response)


async def test_an_answer_with_a_null_error_is_completed(tmp_path: Path) -> None:
    _, _, (record,) = await exchange(gives(b'{"status":"completed","error":null,"output":[]}'), tmp_path)
    assert record.outcome == "completed"


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("end", [None, -8])
async def test_an_answer_that_cannot_be_opened_is_served_and_counted(
    streamed: bool, end: int | None, tmp_path: Path
) -> None:
    before = dropped("damaged_encoding")
    packed = gzip.compress(sse(chat_chunk("Hi", "stop")) if streamed else HELLO % b"Hi")[:end] if end else b"no gzip"
    upstream = (streams if streamed else gives)(packed, content_encoding="gzip")
    assert await exchange(upstream, tmp_path, gateway_capture="none") == (200, packed, [])
    assert dropped("damaged_encoding") == before + 1


ERROR = {"error": {"message": "overloaded", "code": 500}}
STARTS: dict[str, list[dict[str, Any]]] = {
    CHAT: [chat_chunk("hel", role="assistant")],
    "/v1/completions": [{"id": "c", "choices": [{"index": 0, "text": "hel", "finish_reason": None}]}],
    "/v1/responses": [
        {"type": "response.created", "response": {"id": "r", "status": "in_progress", "output": []}},
        {"type": "response.output_text.delta", "output_index": 0, "content_index": 0, "delta": "hel"},
    ],
    "/v1/messages": [
        {"type": "message_start", "message": {"id": "m", "role": "assistant", "content": []}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "hel"}},
    ],
}
ENDS = {"/v1/messages": sse({"type": "message_stop"}, done=False), "/v1/responses": sse({"type": "response.completed"})}


@pytest.mark.parametrize("ended", [True, False])
@pytest.mark.parametrize("coding", ["", "gzip"])
@pytest.mark.parametrize("path", STARTS)
async def test_an_error_inside_a_stream(path: str, coding: str, ended: bool, tmp_path: Path) -> None:
    """With or without an end mark behind it, the exchange is an error, and what came before it is kept."""
    end = ENDS.get(path, b"data: [DONE]\n\n") if ended else b""
    pieces = [sse(*STARTS[path], done=False), sse(ERROR, done=False), end]
    if coding:
        pieces = [gzip.compress(b"".join(pieces))]
    upstream = streams(*pieces, **({"content_encoding": coding} if coding else {}))
    _, data, (record,) = await exchange(upstream, tmp_path, path=path, body=b'{"stream":true}', gateway_capture="none")
    assert data == b"".join(pieces)
    assert record.outcome == "upstream_error"
    assert "hel" in json.dumps(record.response)


async def test_an_error_alone_in_a_stream_is_the_response(tmp_path: Path) -> None:
    _, _, (record,) = await exchange(streams(sse(ERROR)), tmp_path)
    assert (record.outcome, record.response) == ("upstream_error", ERROR)
