"""Errors inside streams, events of the wrong shape, and halves of characters: told, survived, united."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.dialects.assembly import ASSEMBLERS, Assembler, assembler_for
from libs.dialects.assembly.sse import SseParser
from tests.unit.dialects_assembly import streams

CHAT, MESSAGES, RESPONSES, COMPLETIONS = "/v1/chat/completions", "/v1/messages", "/v1/responses", "/v1/completions"
NAMES = ["type", "error", "choices", "index", "delta", "content", "message", "content_block", "usage", "response"]
NAMES += ["item", "output_index", "tool_calls", "function", "partial_json", "text", "finish_reason", "logprobs"]
KINDS = ["message_start", "content_block_start", "content_block_delta", "message_delta", "response.output_item.added"]
KINDS += ["response.created", "response.output_text.delta", "text_delta", "input_json_delta", "citations_delta"]
VALUES = st.recursive(
    st.none() | st.integers(-2, 3) | st.sampled_from([*KINDS, "\ud83d", "x"]) | st.booleans(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=4),
    max_leaves=12,
)
EVENTS = st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=5)


def fed(path: str, data: bytes) -> Assembler:
    assembler = assembler_for(path)
    assert assembler is not None
    assembler.feed(data)
    return assembler


@pytest.mark.parametrize("path", ASSEMBLERS)
@given(events=st.lists(EVENTS, max_size=6))
def test_no_event_makes_an_assembler_fail(path: str, events: list[dict[str, Any]]) -> None:
    assembler = fed(path, "".join(f"data: {json.dumps(e)}\n\n" for e in events).encode() + b"data: [DONE]\n\n")
    json.dumps(assembler.result(), ensure_ascii=False).encode()  # no lone surrogate is left
    assert assembler.finished


def test_an_event_of_the_wrong_shape_is_left_out_and_told() -> None:
    good = {"choices": [{"index": 0, "delta": {"content": "ab"}, "finish_reason": "stop"}]}
    assembler = fed(CHAT, (streams.event({"choices": [7]}) + streams.event(good)).encode())
    assert assembler.result()["choices"][0]["message"]["content"] == "ab"
    assert assembler.broken


ERROR = {"error": {"message": "overloaded", "code": 500}}
BESIDE = {**ERROR, "choices": [{"index": 0, "delta": {"content": ""}, "finish_reason": "error"}]}
ENGINE = {"object": "error", "message": "overloaded", "code": 500}
EVENT = {"type": "error", "error": {"type": "overloaded_error", "message": "overloaded"}}
FAILED = {"type": "response.failed", "response": {"id": "r", "status": "failed", "error": {"message": "overloaded"}}}


@pytest.mark.parametrize(
    ("path", "payload"),
    [(path, payload) for path in ASSEMBLERS for payload in (ERROR, ENGINE, EVENT)]
    + [(CHAT, BESIDE), (COMPLETIONS, BESIDE), (RESPONSES, FAILED)],
)
def test_an_error_is_known_in_every_form(path: str, payload: dict[str, Any]) -> None:
    assembler = fed(path, (streams.event(payload) + "data: [DONE]\n\n").encode())
    assert assembler.complete and assembler.error == payload


def test_an_event_named_error_and_a_finish_reason_error() -> None:
    assert fed(CHAT, streams.event({"message": "no"}, "error").encode()).error == {"message": "no"}
    assert fed(CHAT, streams.event({"choices": [{"index": 0, "finish_reason": "error"}]}).encode()).error


def test_an_empty_error_is_none() -> None:
    piece = {"error": None, "choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": "stop"}]}
    assembler = fed(CHAT, streams.event(piece).encode())
    assert assembler.error is None and assembler.finished


def test_half_characters_in_two_events_unite_and_lone_ones_are_replaced() -> None:
    pieces = ("\\ud83d", "\\ude00", " \\ud800", "\xff")
    event = b'data: {"choices":[{"index":0,"delta":{"content":"%s"}}]}\n\n'
    data = b"".join(event % piece.encode("latin-1") for piece in pieces)
    assert fed(CHAT, data).result()["choices"][0]["message"]["content"] == "\U0001f600 \ufffd\ufffd"


def test_half_characters_in_streamed_tool_input() -> None:
    events = [
        {"type": "message_start", "message": {"id": "m"}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "tool_use", "id": "t", "input": {}}},
        *(
            {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": part}}
            for part in ('{"a":"\\ud8', '00"}')
        ),
    ]
    built = streams.assemble(MESSAGES, "".join(streams.event(e) for e in events).encode())
    assert built["content"][0]["input"] == {"a": "\ufffd"}


def test_a_long_line_is_joined_once() -> None:
    """Joined at every piece it costs the square of its length; here the pieces wait as they came."""
    parser, piece = SseParser(), b"x" * 1000
    parser.feed(b"data: ")
    for _ in range(100):
        assert parser.feed(piece) == []
    assert len(parser._tail) < 10 and len(parser._more) == 100
    (event,) = parser.feed(b"\n\n")
    assert event.data == piece * 100


@pytest.mark.parametrize("index", [10**9, float("inf"), float("nan"), "9" * 5000, -5])
def test_an_odd_place_of_a_part_costs_neither_memory_nor_the_stream(index: object) -> None:
    delta = {"type": "response.output_text.delta", "output_index": 0}
    events = [
        delta | {"content_index": i, "delta": text} for i, text in ((index, "Hello, "), (index, "you."), (1, "!"))
    ]
    started = time.perf_counter()
    assembler = fed(RESPONSES, "".join(f"data: {json.dumps(e)}\n\n" for e in events).encode())
    assert len(json.dumps(assembler.result())) < 1000
    assert time.perf_counter() - started < 1.0
    if index == 10**9:
        (item,) = assembler.result()["output"]
        assert [p["text"] for p in item["content"]] == ["Hello, you.", "!"]
