"""What the gateway asks of each engine comes back in the record and never reaches the client."""

from __future__ import annotations

import gzip
import itertools
import json
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from multidict import CIMultiDict

from libs.contracts import Array, Capture
from services.gateway.capture import CaptureFilter, capture_for

PLACES = st.lists(st.integers(0, 10**6), max_size=10)
CHAT = "/v1/chat/completions"
LIMIT = 2**20  # bytes of a request, opened


def ask(mode: Any, body: dict[str, Any] | bytes, path: str = CHAT, headers: Any = ()) -> CaptureFilter:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    found = capture_for(mode, path, raw, CIMultiDict(headers), 2, LIMIT)
    assert not isinstance(found, str), found
    return found


def refused(mode: Any, body: dict[str, Any] | bytes, path: str = CHAT) -> str:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    found = capture_for(mode, path, raw, CIMultiDict(), 2, LIMIT)
    assert isinstance(found, str)
    return found


def through(capture: CaptureFilter, data: bytes, places: Sequence[int]) -> bytes:
    bounds = sorted({p % (len(data) + 1) for p in places} | {0, len(data)})
    return b"".join(capture.feed(data[a:b]) for a, b in itertools.pairwise(bounds)) + capture.close()


def captured() -> Capture:
    return Capture(
        prompt_token_ids=Array.ints([1, 2, 3]),
        response_token_ids=Array.ints([7, 8]),
        logprobs=Array.floats([-0.5, -1.5]),
        topk_ids=Array.ints([7, 9, 9, 8], [2, 2]),
        topk_logprobs=Array.floats([-0.5, -1.0, -1.25, -1.5], [2, 2]),
    )


# --- the built-in policy ---

BESIDE = b'{"release_id":"maths@00003-abcdef01","capture":' + msgspec.json.encode(captured()) + b"}"
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


def test_builtin_asks_by_header_and_leaves_the_body_alone() -> None:
    headers: CIMultiDict[str] = CIMultiDict()
    found = capture_for("builtin", CHAT, b'{ "model":"m"}', headers, 4, LIMIT)
    assert not isinstance(found, str)
    assert found.body == b'{ "model":"m"}'
    assert headers["x-clawback-capture"] == "4"


@given(TEXTS, st.sampled_from(["", " "]))
def test_builtin_key_is_cut_from_a_plain_response(text: str, space: str) -> None:
    plain = json.dumps(
        {"id": "c", "text": text, "nested": {"clawback": {"x": 1}}}, separators=("," + space, ":")
    ).encode()
    answered = plain[:-1] + f',{space}"clawback":{space}'.encode() + BESIDE + b"}"
    found = ask("builtin", {})
    assert found.strip(answered) == plain
    assert found.capture == captured()
    assert found.release_id == "maths@00003-abcdef01"


def test_builtin_leaves_a_response_without_the_key_alone() -> None:
    found = ask("builtin", {})
    for body in (b'{"a":"\\"clawback\\":{}"}', b'{"x":{"clawback":{}}}', b"not json", b""):
        assert found.strip(body) == body
    assert found.capture is None


@given(st.lists(TEXTS, max_size=4), PLACES, st.booleans())
def test_builtin_event_is_cut_from_a_stream(texts: list[str], places: list[int], spaced: bool) -> None:
    events = [b"data: " + json.dumps({"object": "chat.completion.chunk", "t": t}).encode() + b"\n\n" for t in texts]
    head = b'{"object": "clawback.capture", "clawback": ' if spaced else b'{"object":"clawback.capture","clawback":'
    special = b"data: " + head + BESIDE + b"}\n\n"
    visible = b": comment\n\n" + b"".join(events) + b"data: [DONE]\n\n"
    stream = visible.replace(b"data: [DONE]", special + b"data: [DONE]")
    found = ask("builtin", {})
    assert through(found, stream, places) == visible
    assert found.capture == captured()


@given(st.binary(max_size=200), PLACES)
def test_builtin_filter_never_changes_other_bytes(data: bytes, places: list[int]) -> None:
    assume(b"clawback.capture" not in data)
    assert through(ask("builtin", {}), data, places) == data


def test_builtin_filter_holds_nothing_of_an_ordinary_event_back() -> None:
    found = ask("builtin", {})
    assert found.feed(b'data: {"object":"chat') == b'data: {"object":"chat'
    assert found.feed(b'.completion.chunk"}') == b'.completion.chunk"}'


def test_builtin_broken_capture_spoils_only_the_capture() -> None:
    found = ask("builtin", {})
    assert found.strip(b'{"id":"c","clawback":{"release_id":"r","capture":{"logprobs":7}}}') == b'{"id":"c"}'
    assert found.capture is None and found.broken


# --- vLLM: shapes of its protocol.py (chat completion responses and stream chunks) ---


def vllm_step(token: int, logprob: float, top: Sequence[tuple[int, float]]) -> dict[str, Any]:
    def entry(identity: int, value: float) -> dict[str, Any]:
        return {"token": f"token_id:{identity}", "logprob": value, "bytes": [116]}

    return {**entry(token, logprob), "top_logprobs": [entry(*t) for t in top]}


# The sampled token comes first; of three listed candidates the two best count.
STEPS = [
    vllm_step(7, -0.5, [(7, -0.5), (9, -1.0), (4, -3.0)]),
    vllm_step(8, -4.5, [(8, -4.5), (9, -1.25), (7, -1.5)]),
]
WANTED = Capture(
    prompt_token_ids=Array.ints([1, 2, 3]),
    response_token_ids=Array.ints([7, 8]),
    logprobs=Array.floats([-0.5, -4.5]),
    topk_ids=Array.ints([7, 9, 9, 7], [2, 2]),
    topk_logprobs=Array.floats([-0.5, -1.0, -1.25, -1.5], [2, 2]),
)


def vllm_plain(*, asked: bool) -> str:
    logprobs = json.dumps({"content": STEPS}) if asked else "null"
    ids, prompt = ("[7, 8]", "[1, 2, 3]") if asked else ("null", "null")
    return (
        '{"id":"chatcmpl-1","object":"chat.completion","model":"m","choices":[{"index":0,"message":{"role":"assistant",'
        f'"content":"hi"}},"logprobs":{logprobs},"finish_reason":"stop","stop_reason":null,"token_ids":{ids}}}],'
        f'"usage":{{"total_tokens":1e0}},"prompt_logprobs":null,"prompt_token_ids":{prompt}}}'
    )


def vllm_stream(*, asked: bool) -> bytes:
    def chunk(delta: dict[str, Any], step: int | None, first: bool = False, finish: str | None = None) -> str:
        ids = [[7, 8][step]] if asked and step is not None else None
        logprobs = {"content": [STEPS[step]]} if asked and step is not None else None
        choice = {"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": finish, "token_ids": ids}
        payload: dict[str, Any] = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "choices": [choice]}
        if first:
            payload["prompt_token_ids"] = [1, 2, 3] if asked else None
        return "data: " + json.dumps(payload, separators=(",", ":")) + "\n\n"

    parts = [chunk({"role": "assistant", "content": ""}, None, first=True)]
    parts += [chunk({"content": "h"}, 0), chunk({"content": "ï"}, 1, finish="stop")]
    parts += ['data: {"id":"chatcmpl-1","choices":[],"usage":{"total_tokens":5}}\n\n', "data: [DONE]\n\n"]
    return "".join(parts).encode()


def test_vllm_request_keeps_its_bytes_and_gets_the_fields() -> None:
    found = ask("vllm", b'{"model" : "m", "temperature":1.0, "logprobs":false}\n')
    assert found.body.startswith(b'{"model" : "m", "temperature":1.0, "logprobs":false,')
    sent = json.loads(found.body)
    assert sent["logprobs"] is True and sent["top_logprobs"] == 3
    assert sent["return_token_ids"] is True and sent["return_tokens_as_token_ids"] is True


def test_vllm_plain_response_is_as_if_nothing_had_been_asked() -> None:
    found = ask("vllm", {"model": "m"})
    assert found.strip(vllm_plain(asked=True).encode()).decode() == vllm_plain(asked=False)
    assert found.capture == WANTED


@given(PLACES)
def test_vllm_stream_is_as_if_nothing_had_been_asked(places: list[int]) -> None:
    found = ask("vllm", {"model": "m", "stream": True})
    assert through(found, vllm_stream(asked=True), places) == vllm_stream(asked=False)
    assert found.capture == WANTED


def test_vllm_ids_stay_for_a_client_that_asked_for_them() -> None:
    found = ask("vllm", {"return_token_ids": True})
    kept = json.loads(found.strip(vllm_plain(asked=True).encode()))
    assert kept["prompt_token_ids"] == [1, 2, 3] and kept["choices"][0]["token_ids"] == [7, 8]
    assert kept["choices"][0]["logprobs"] is None


def test_vllm_lists_that_do_not_fit_give_no_capture() -> None:
    body = vllm_plain(asked=True).replace("[7, 8]", "[7, 8, 9]")
    found = ask("vllm", {})
    found.strip(body.encode())
    assert found.capture is None and found.broken


def test_vllm_release_is_the_adapter_that_served() -> None:
    found = ask("vllm", {})
    found.strip(vllm_plain(asked=True).replace('"model":"m"', '"model":"maths@00003-abcdef01"').encode())
    assert found.release_id == "maths@00003-abcdef01"


# --- SGLang: shapes of its protocol.py and serving_chat.py ---


def sglang_plain(*, asked: bool) -> str:
    meta = {
        "id": "x",
        "output_token_logprobs": [[-0.5, 7, "h"], [-4.5, 8, "i"]],
        "output_top_logprobs": [[[-0.5, 7, "h"], [-1.0, 9, "g"]], [[-1.25, 9, "g"], [-1.5, 7, "h"]]],
    }
    logprobs = '{"content":[]}' if asked else "null"
    extra = f',"meta_info":{json.dumps(meta)},"prompt_token_ids":[1,2,3]' if asked else ""
    return (
        '{"id":"c","object":"chat.completion","model":"m","choices":[{"index":0,"message":{"role":"assistant",'
        f'"content":"hi"}},"logprobs":{logprobs},"finish_reason":"stop"{extra}}}],"usage":{{"total_tokens":2}}}}'
    )


def test_sglang_plain_response_is_as_if_nothing_had_been_asked() -> None:
    found = ask("sglang", {"model": "m"})
    sent = json.loads(found.body)
    assert sent["return_meta_info"] is True and sent["return_prompt_token_ids"] is True and sent["top_logprobs"] == 2
    assert found.strip(sglang_plain(asked=True).encode()).decode() == sglang_plain(asked=False)
    assert found.capture == WANTED


# --- requests that get no capture, each with its reason ---


@pytest.mark.parametrize(
    ("mode", "body", "path", "reason"),
    [
        ("none", {}, CHAT, "upstream_gives_none"),
        ("vllm", {"logprobs": True}, CHAT, "client_asked_logprobs"),
        ("vllm", {"n": 2}, CHAT, "several_choices"),
        ("sglang", {"stream": True}, CHAT, "streamed_by_sglang"),
        ("vllm", {}, "/v1/messages", "path_without_capture"),
    ],
)
def test_no_capture_has_a_reason(mode: str, body: dict[str, Any], path: str, reason: str) -> None:
    assert refused(mode, body, path) == reason


def test_a_body_that_is_no_json_goes_to_the_upstream_as_it_is() -> None:
    assert capture_for("vllm", CHAT, b"{broken", CIMultiDict(), 2, LIMIT) == "request_not_json"


def test_a_request_over_the_limit_or_damaged_goes_on_unchanged_and_has_its_reason() -> None:
    bomb = gzip.compress(b'{"messages":"' + b"x" * LIMIT + b'"}')
    packed: CIMultiDict[str] = CIMultiDict({"content-encoding": "gzip"})
    assert capture_for("vllm", CHAT, bomb, packed, 2, LIMIT) == "over_record_limit"
    assert capture_for("vllm", CHAT, bomb[:-9], packed, 2, 2**30) == "damaged_encoding"
    assert packed == {"content-encoding": "gzip"}


def test_a_request_with_half_a_surrogate_pair_is_asked_for_its_capture() -> None:
    found = ask("vllm", b'\xef\xbb\xbf{"messages":[{"content":"\\ud83d"}]}')
    assert found.body.startswith(b'\xef\xbb\xbf{"messages":[{"content":"\\ud83d"}],"logprobs":true')


DEEP = b"[" * 50_000 + b"]" * 50_000
ODD = [DEEP, b'{"clawback":' + DEEP + b"}", b'{"choices":[1]}', b"\xff", b""]
ODD += [b'{"choices":[{"logprobs":[1],"token_ids":3}]}', b'{"x":' + DEEP + b"}"]


@pytest.mark.parametrize("mode", ["builtin", "vllm", "sglang"])
def test_any_answer_comes_through(mode: str) -> None:
    for body in ODD:
        assert json_like(ask(mode, {}).strip(body)) == json_like(body)
        filtered = ask(mode, {"stream": True} if mode != "sglang" else {})
        assert json_like(through(filtered, b"data: " + body + b"\n\n", [3])) == json_like(b"data: " + body + b"\n\n")


def json_like(body: bytes) -> bytes:
    """Without what a filter blanks in a choice."""
    return body.replace(b"[1],", b"null,").replace(b":3}", b":null}")


def test_a_request_as_deep_as_that_gets_no_capture() -> None:
    assert refused("vllm", b'{"x":' + DEEP + b"}") == "request_not_json"


def test_bytes_that_are_no_utf8_stay_while_the_capture_is_cut_out() -> None:
    body = b'\xef\xbb\xbf{"choices":[{"message":{"content":"a\xffb"},"logprobs":{"content":[]},"token_ids":[1]}]}'
    clean = ask("vllm", {}).strip(body)
    assert clean == b'\xef\xbb\xbf{"choices":[{"message":{"content":"a\xffb"},"logprobs":null,"token_ids":null}]}'


@pytest.mark.parametrize("token", [2**40, -(2**40)])
def test_token_ids_that_no_engine_has_cost_the_capture_not_the_answer(token: int) -> None:
    top = [{"token": f"token_id:{token}", "logprob": -0.1}, {"token": "token_id:1", "logprob": -2.0}]
    step = {**top[0], "top_logprobs": [*top, {"token": "token_id:2", "logprob": -3.0}]}
    answer = {"prompt_token_ids": [1], "choices": [{"token_ids": [token], "logprobs": {"content": [step]}}]}
    found = ask("vllm", {"model": "m"})
    found.strip(json.dumps(answer).encode())
    assert (found.capture, found.broken) == (None, True)
    meta = {
        "output_token_logprobs": [[-0.1, token, ""]],
        "output_top_logprobs": [[[-0.1, token, ""], [-2.0, 1, ""], [-3.0, 2, ""]]],
    }
    found = ask("sglang", {"model": "m"})
    found.strip(json.dumps({"choices": [{"prompt_token_ids": [1], "meta_info": meta}]}).encode())
    assert (found.capture, found.broken) == (None, True)
