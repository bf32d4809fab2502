"""A streamed response, cut anywhere, is put together to what the call returns without streaming."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.dialects.assembly import assembler_for
from tests.unit.dialects_assembly import streams

PLACES = st.lists(st.integers(0, 10**6), max_size=12)
CHAT, MESSAGES, RESPONSES, COMPLETIONS = "/v1/chat/completions", "/v1/messages", "/v1/responses", "/v1/completions"


@given(streams.chat(), PLACES, PLACES, st.data())
def test_chat_stream_equals_plain(
    whole: dict[str, Any], texts: list[int], places: list[int], data: st.DataObject
) -> None:
    stream = data.draw(streams.noise(streams.chat_events(whole, texts)))
    assert streams.assemble(CHAT, stream.encode(), places) == whole


@given(streams.message(), PLACES, PLACES, st.data())
def test_message_stream_equals_plain(
    whole: dict[str, Any], texts: list[int], places: list[int], data: st.DataObject
) -> None:
    stream = data.draw(streams.noise(streams.message_events(whole, texts)))
    assert streams.assemble(MESSAGES, stream.encode(), places) == whole


@given(streams.response(), PLACES, PLACES, st.data())
def test_response_stream_equals_plain(
    whole: dict[str, Any], texts: list[int], places: list[int], data: st.DataObject
) -> None:
    stream = data.draw(streams.noise(streams.response_events(whole, texts)))
    assert streams.assemble(RESPONSES, stream.encode(), places) == whole


@given(streams.response(), PLACES)
def test_responses_stream_without_its_end_holds_what_came(whole: dict[str, Any], texts: list[int]) -> None:
    # Only deltas: neither the items' own closing events nor the response's.
    kept = [e for e in streams.response_events(whole, texts) if ".done" not in e and ".completed" not in e]
    cut = streams.assemble(RESPONSES, "".join(kept).encode())
    assert cut["status"] == "in_progress"
    for have, want in zip(cut["output"], whole["output"], strict=True):
        if want["type"] == "message":
            assert have["content"][0]["text"] == want["content"][0]["text"]
        else:
            assert have["arguments"] == want["arguments"]


@given(streams.chat(), PLACES, st.integers(0, 10**6))
def test_cut_chat_stream_is_a_prefix(whole: dict[str, Any], texts: list[int], at: int) -> None:
    data = "".join(streams.chat_events(whole, texts)).encode()
    assembler = assembler_for(CHAT)
    assert assembler is not None
    assembler.feed(data[: at % len(data)])
    cut = assembler.result()
    for choice in (cut or {"choices": []})["choices"]:
        full = whole["choices"][choice["index"]]["message"]
        assert (full["content"] or "").startswith(choice["message"].get("content") or "")
        for have, want in zip(choice["message"].get("tool_calls") or (), full.get("tool_calls") or (), strict=False):
            assert want["function"]["arguments"].startswith(have["function"]["arguments"])


@given(PLACES)
def test_line_ends_do_not_count(places: list[int]) -> None:
    for newline in ("\r\n", "\r", "\n"):
        data = "".join(streams.event(p, newline=newline) for p in _two_chunks()) + f"data: [DONE]{newline}{newline}"
        assert streams.assemble(CHAT, data.encode(), places)["choices"][0]["message"]["content"] == "ab"


def _two_chunks() -> list[dict[str, Any]]:
    return [
        {"id": "c", "choices": [{"index": 0, "delta": {"role": "assistant", "content": "a"}, "finish_reason": None}]},
        {"id": "c", "choices": [{"index": 0, "delta": {"content": "b"}, "finish_reason": "stop"}]},
    ]


def test_content_in_the_last_chunk_beside_the_finish_reason() -> None:
    data = "".join(map(streams.event, _two_chunks()))
    assembler = assembler_for(CHAT)
    assert assembler is not None
    assembler.feed(data.encode())
    assert assembler.result()["choices"][0] == {
        "index": 0,
        "message": {"role": "assistant", "content": "ab"},
        "finish_reason": "stop",
    }
    assert assembler.finished and not assembler.complete  # no [DONE] came


def test_done_without_a_blank_line_ends_the_stream() -> None:
    assembler = assembler_for(CHAT)
    assert assembler is not None
    assembler.feed("".join(map(streams.event, _two_chunks())).encode() + b"data: [DONE]")
    assembler.result()
    assert assembler.complete


def test_tool_calls_that_share_an_index_stay_apart() -> None:
    def call(identity: str, arguments: str) -> dict[str, Any]:
        function = {"name": "ls", "arguments": arguments}
        part = {"index": 0, "id": identity, "type": "function", "function": function}
        return {"choices": [{"index": 0, "delta": {"tool_calls": [part]}}]}

    data = streams.event(call("a", "{}")) + streams.event(call("b", '{"x":1}'))
    (choice,) = streams.assemble(CHAT, data.encode())["choices"]
    assert [(c["id"], c["function"]["arguments"]) for c in choice["message"]["tool_calls"]] == [
        ("a", "{}"),
        ("b", '{"x":1}'),
    ]


def test_a_name_repeated_in_every_piece_is_one_name() -> None:
    def piece(arguments: str) -> dict[str, Any]:
        part = {"index": 0, "id": "a", "type": "function", "function": {"name": "ls", "arguments": arguments}}
        return {"choices": [{"index": 0, "delta": {"tool_calls": [part]}}]}

    data = streams.event(piece('{"x"')) + streams.event(piece(":1}"))
    (call,) = streams.assemble(CHAT, data.encode())["choices"][0]["message"]["tool_calls"]
    assert call == {"id": "a", "type": "function", "function": {"name": "ls", "arguments": '{"x":1}'}}


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_error_inside_a_stream_is_kept_apart(path: str) -> None:
    assembler = assembler_for(path)
    assert assembler is not None
    assembler.feed(streams.event({"error": {"message": "overloaded"}}).encode())
    assert assembler.result() is None
    assert assembler.error == {"error": {"message": "overloaded"}}


def test_anthropic_error_event() -> None:
    assembler = assembler_for(MESSAGES)
    assert assembler is not None
    assembler.feed(streams.event({"type": "error", "error": {"type": "overloaded_error"}}, "error").encode())
    assert assembler.error is not None and not assembler.finished


def test_cut_tool_input_is_kept_as_text() -> None:
    whole = {"id": "m", "type": "message", "role": "assistant", "model": "c", "content": [], "usage": {}}
    tool = {"type": "tool_use", "id": "t", "name": "read", "input": {}}
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": whole},
        {"type": "content_block_start", "index": 0, "content_block": tool},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": '{"pa'}},
    ]
    cut = streams.assemble(MESSAGES, "".join(streams.event(e, e["type"]) for e in events).encode())
    assert cut["content"] == [{**tool, "partial_json": '{"pa'}]


@given(PLACES)
def test_text_completion(places: list[int]) -> None:
    def chunk(index: int, text: str, finish: str | None = None) -> dict[str, Any]:
        choice = {"index": index, "text": text, "logprobs": None, "finish_reason": finish}
        return {"id": "cmpl", "object": "text_completion", "created": 1, "model": "m", "choices": [choice]}

    parts = [chunk(0, "He"), chunk(1, "Ad"), chunk(0, "llo", "stop"), chunk(1, "ieu", "length")]
    data = "".join(map(streams.event, parts)) + "data: [DONE]\n\n"
    whole = streams.assemble(COMPLETIONS, data.encode(), places)
    assert [(c["text"], c["finish_reason"]) for c in whole["choices"]] == [("Hello", "stop"), ("Adieu", "length")]


def test_unknown_events_and_broken_json_are_skipped() -> None:
    data = 'event: future.thing\ndata: {"type":"future.thing"}\n\ndata: {broken\n\ndata: 7\n\n'
    assert streams.assemble(MESSAGES, data.encode()) is None
    assert streams.assemble(CHAT, (data + streams.event(_two_chunks()[0])).encode())["id"] == "c"


def test_paths_without_generation_have_no_assembler() -> None:
    assert assembler_for("/v1/embeddings") is None


def test_json_roundtrip_of_result() -> None:
    result = streams.assemble(CHAT, "".join(map(streams.event, _two_chunks())).encode())
    assert json.loads(json.dumps(result)) == result
