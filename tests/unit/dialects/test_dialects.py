"""Requests and responses of the three APIs in common terms; whatever a client sends is read or refused by name."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.contracts import TrafficRaw
from libs.dialects import ToolCall, for_path, parse_request, parse_response, partition_key
from libs.dialects.chat_completions import ChatCompletions
from libs.dialects.messages import Messages
from libs.dialects.responses import Responses
from libs.errors import ContractError

ALL = (ChatCompletions(), Messages(), Responses())


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/v1/chat/completions", "chat_completions"),
        ("/proxy/openai/v1/chat/completions?beta=1", "chat_completions"),
        ("/v1/messages", "messages"),
        ("/v1/messages/", "messages"),
        ("/v1/responses", "responses"),
        ("/v1/messages/count_tokens", None),
        ("/v1/responses/compact", None),
        ("/v1/embeddings", None),
        ("", None),
    ],
)
def test_a_path_names_its_dialect(path: str, name: str | None) -> None:
    dialect = for_path(path)
    assert (dialect.name if dialect else None) == name


def test_chat_completions() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "ls", "arguments": '{"p": 1}'}}
    parsed = ChatCompletions().parse_request(
        {
            "model": "m",
            "max_completion_tokens": 9,
            "tools": [{"type": "function", "function": {"name": "ls"}}, {"type": "web_search"}],
            "messages": [
                {"role": "developer", "content": "Help."},
                {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": "x"}]},
                {"role": "assistant", "content": None, "tool_calls": [call], "reasoning_content": "hm"},
                {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "out"}]},
                {"role": "function", "name": "old", "content": "out"},
            ],
        }
    )
    assert [m.role for m in parsed.messages] == ["system", "user", "assistant", "tool", "tool"]
    assert (parsed.model, parsed.max_tokens, parsed.tool_names) == ("m", 9, ("ls", "web_search"))
    assert parsed.messages[1].text == "a" and len(parsed.messages[1].media) == 1
    assert parsed.messages[2].tool_calls == (ToolCall("ls", '{"p": 1}', "c1"),)
    assert parsed.messages[2].reasoning == "hm"
    assert (parsed.messages[3].text, parsed.messages[3].id) == ("out", "c1")


def test_chat_completions_responses_with_several_choices_and_errors() -> None:
    body = {
        "id": "r",
        "choices": [{"message": {"content": "a"}, "finish_reason": "length"}, {"message": {"content": "b"}}],
    }
    response = ChatCompletions().parse_response(body)
    assert ([c.text for c in response.choices], response.finish, response.id) == (["a", "b"], "length", "r")
    assert response.choices[0].role == "assistant"
    failed = ChatCompletions().parse_response({"error": {"message": "busy", "code": 503}})
    assert (failed.reply, "busy" in failed.error) == (None, True)


def test_messages() -> None:
    parsed = Messages().parse_request(
        {
            "system": [{"type": "text", "text": "Help."}, {"type": "text", "text": "More."}],
            "max_tokens": 5,
            "tools": [{"name": "ls"}],
            "messages": [
                {"role": "user", "content": "hi"},
                {
                    "role": "assistant",
                    "content": [
                        {"type": "thinking", "thinking": "hm", "signature": "s"},
                        {"type": "text", "text": "a"},
                        {"type": "tool_use", "id": "t1", "name": "ls", "input": {"p": 1}},
                    ],
                },
                {
                    "role": "user",
                    "content": [
                        {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "out"}]},
                        {"type": "tool_result", "tool_use_id": "t2", "content": "err", "is_error": True},
                        {"type": "text", "text": "and now?"},
                    ],
                },
            ],
        }
    )
    assert [(m.role, m.text) for m in parsed.messages] == [
        ("system", "Help.\nMore."),
        ("user", "hi"),
        ("assistant", "a"),
        ("tool", "out"),
        ("tool", "err"),
        ("user", "and now?"),
    ]
    assert parsed.messages[2].tool_calls == (ToolCall("ls", '{"p":1}', "t1"),)
    assert parsed.messages[2].reasoning == "hm"
    response = Messages().parse_response(
        {"id": "m", "content": [{"type": "text", "text": "x"}], "stop_reason": "max_tokens"}
    )
    assert (response.reply.text if response.reply else "", response.finish) == ("x", "length")


def test_responses() -> None:
    parsed = Responses().parse_request(
        {
            "instructions": "Help.",
            "previous_response_id": "resp_1",
            "input": [
                {"role": "user", "content": "hi"},
                {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
                {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "a"}]},
                {"type": "function_call", "call_id": "c1", "name": "ls", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c1", "output": "out"},
                {"type": "custom_tool_call", "call_id": "c2", "name": "patch", "input": "*** Begin"},
                {"type": "item_reference", "id": "x"},
            ],
        }
    )
    assert [(m.role, m.text) for m in parsed.messages] == [
        ("system", "Help."),
        ("user", "hi"),
        ("assistant", "a"),
        ("tool", "out"),
        ("assistant", ""),
    ]
    assert parsed.previous_response_id == "resp_1"
    assert (parsed.messages[2].reasoning, parsed.messages[2].tool_calls[0].name) == ("hm", "ls")
    assert parsed.messages[4].tool_calls == (ToolCall("patch", "*** Begin", "c2"),)
    assert Responses().parse_request({"input": "just text"}).messages[0].text == "just text"
    cut = Responses().parse_response({"status": "incomplete", "output": [{"type": "message", "content": "x"}]})
    assert cut.finish == "length"


@pytest.mark.parametrize("dialect", ALL, ids=lambda d: d.name)
@pytest.mark.parametrize("body", [None, 3, "text", [], [{}]])
def test_no_object_at_all_is_refused_by_name(dialect: Any, body: Any) -> None:
    with pytest.raises(ContractError, match="request must be a JSON object"):
        dialect.parse_request(body)
    with pytest.raises(ContractError, match="response must be a JSON object"):
        dialect.parse_response(body)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                (
                    "role",
                    "content",
                    "type",
                    "text",
                    "input",
                    "messages",
                    "choices",
                    "message",
                    "output",
                    "tool_calls",
                    "function",
                    "name",
                    "arguments",
                    "id",
                    "tools",
                    "error",
                    "summary",
                    "system",
                    "metadata",
                    "user_id",
                )
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=25,
)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(json_values)
def test_garbage_never_raises_anything_but_a_contract_error(body: Any) -> None:
    for dialect, path in zip(ALL, ("/v1/chat/completions", "/v1/messages", "/v1/responses"), strict=True):
        for name in ("messages", "input", "choices", "output", "content"):
            wrapped = {name: body, "metadata": body}
            assert dialect.parse_request(wrapped).dialect == dialect.name
            assert dialect.parse_response(wrapped).dialect == dialect.name
        for value in (body, {"messages": body, "input": body}):
            one = record(path, value, value)
            assert partition_key(one)
            for parse in (parse_request, parse_response):
                try:
                    parse(one)
                except ContractError:
                    assert not isinstance(value, dict)


def test_deep_nesting_does_not_exhaust_the_stack() -> None:
    deep: Any = "x"
    for _ in range(400):
        deep = [{"content": deep}]
    for dialect in ALL:
        dialect.parse_request({"messages": deep, "input": deep})


def record(path: str, request: Any, response: Any, **fields: Any) -> TrafficRaw:
    base: dict[str, Any] = {
        "exchange_id": "x",
        "scenario": "s",
        "tenant": "t",
        "received_at": 0.0,
        "completed_at": 0.0,
        "headers": {},
        "outcome": "completed",
        "release_id": "base",
    }
    return TrafficRaw(path=path, request=request, response=response, **(base | fields))


def test_an_unknown_path_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ContractError, match=r"/v1/embeddings.*\*/messages"):
        parse_request(record("/v1/embeddings", {}, {}))


def test_the_partition_key_follows_the_session_or_the_opening() -> None:
    def key(messages: list[Any], **fields: Any) -> str:
        return partition_key(record("/v1/chat/completions", {"messages": messages}, {}, **fields))

    system, hi = {"role": "system", "content": "Help."}, {"role": "user", "content": "hi"}
    later = [system, hi, {"role": "assistant", "content": "a"}, {"role": "user", "content": "b"}]
    assert key([system, hi]) == key(later)
    assert len({key([hi]), key([system, hi]), key([hi], tenant="u"), key([hi], scenario="z")}) == 4
    tagged = {"headers": {"x-reef-tag-session": "s"}}
    assert key([hi], **tagged) == key(later, **tagged) != key([hi])
    assert json.dumps(key([hi])).isascii()
