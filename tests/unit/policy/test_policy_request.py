"""Requests: what is accepted, what is ignored, and which field an error names."""

from __future__ import annotations

import json
from typing import Any

import pytest

from services.policy.errors import ApiError
from services.policy.request import parse_capture, parse_chat, parse_text

MESSAGES = [{"role": "user", "content": "Hi"}]


def parse(**fields: Any) -> Any:
    return parse_chat(json.dumps({"messages": MESSAGES, **fields}).encode())


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": "Hi"}, "messages"),
        ({"messages": [{"content": "Hi"}]}, "messages[0].role"),
        ({"messages": [*MESSAGES, {"role": "robot", "content": ""}]}, "messages[1].role"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_completion_tokens": "8"}, "max_completion_tokens"),
        ({"n": 0}, "n"),
        ({"stop": ""}, "stop"),
        ({"stop": ["a", ""]}, "stop[1]"),
        ({"seed": 1.5}, "seed"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"presence_penalty": 3}, "presence_penalty"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"100": 1}}, "logit_bias"),
        ({"logit_bias": {"5": 101}}, "logit_bias"),
        ({"stream": "yes"}, "stream"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"tool_choice": "required"}, "tool_choice"),
    ],
    ids=str,
)
def test_wrong_fields_are_named(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as caught:
        parse(**fields).sampling(0, 100)
    error = caught.value
    assert (error.status, error.param) == (400, param)
    assert error.body()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ["a", ""]}, "prompt"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": ["a", 5]}, "prompt"),
        ({"prompt": [5, [6]]}, "prompt"),
        ({"prompt": "a", "logprobs": 21}, "logprobs"),
        ({"prompt": "a", "echo": True}, "echo"),
        ({"prompt": "a", "suffix": "b"}, "suffix"),
        ({"prompt": "a", "best_of": 3}, "best_of"),
    ],
    ids=str,
)
def test_wrong_fields_of_plain_completions_are_named(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as caught:
        parse_text(json.dumps(fields).encode()).prompts()
    assert (caught.value.status, caught.value.param) == (400, param)


def test_prompts_are_texts_or_token_ids_one_or_many() -> None:
    for given, found in (("a", ["a"]), (["a", "b"], ["a", "b"]), ([1, 2], [[1, 2]]), ([[1], [2]], [[1], [2]])):
        assert parse_text(json.dumps({"prompt": given, "best_of": 1}).encode()).prompts() == found


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'"x"', b"\xff"])
def test_what_is_no_json_object_is_a_400(body: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        parse_chat(body)
    assert caught.value.status == 400


def test_missing_messages_are_named() -> None:
    with pytest.raises(ApiError) as caught:
        parse_chat(b'{"model": "m"}')
    assert caught.value.param == "messages"


def test_nulls_mean_defaults_and_unknown_fields_are_ignored() -> None:
    names = ("temperature", "top_p", "max_tokens", "stop", "seed", "n", "stream", "stream_options", "tools", "logprobs")
    chat = parse(**dict.fromkeys(names), user="u", metadata={"a": 1}, parallel_tool_calls=True, made_up={"deep": []})
    assert chat.sampling(0, 100).temperature == 1.0
    assert (chat.limit, chat.stops, chat.include_usage) == (None, [], False)


def test_the_newer_name_of_the_limit_wins() -> None:
    assert parse(max_tokens=5, max_completion_tokens=3).limit == 3


def test_a_stop_may_be_one_string() -> None:
    assert parse(stop="x").stops == ["x"]


def test_whole_numbers_are_fine_where_fractions_are_expected() -> None:
    sampling = parse(temperature=0, top_p=1, top_k=-1, logit_bias={"7": 5}).sampling(4, 100)
    assert (sampling.temperature, sampling.top_k, sampling.logit_bias, sampling.captured) == (0, 0, {7: 5.0}, 4)


@pytest.mark.parametrize("header", ["0", "-1", "x", "257", "4.0", "²", "9" * 5000])
def test_a_wrong_capture_header_is_named(header: str) -> None:
    with pytest.raises(ApiError) as caught:
        parse_capture(header, 1000)
    assert caught.value.param == "x-clawback-capture"


def test_the_capture_header_gives_the_number_of_candidates() -> None:
    assert (parse_capture(None, 1000), parse_capture("4", 1000)) == (0, 4)
