"""The server over HTTP with a real engine: whole and streamed answers, captures, errors, limits, clients that leave."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from libs.contracts import Capture
from libs.learning.engine.engine import Limits
from libs.telemetry import metrics
from tests.unit.learning_engine.support import reference
from tests.unit.policy.support import CHAT, Running, running

HI = [{"role": "user", "content": "Hi"}]


async def events(server: Running, headers: dict[str, str] | None = None, **body: Any) -> list[Any]:
    """The data of a streamed answer, parsed; the end mark as it is."""
    values = {"messages": HI, "max_tokens": 8, "stream": True, **body}
    async with server.client.post(CHAT, json=values, headers=headers or {}) as response:
        assert response.status == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        assert response.headers["x-clawback-release"] == "base"
        text = await response.text()
    assert text.endswith("\n\n")
    lines = [part.removeprefix("data: ") for part in text.strip().split("\n\n")]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


async def test_whole_and_streamed_answers_agree(policy_model: Path) -> None:
    async with running(policy_model) as server:
        asked = {"seed": 5, "n": 2, "temperature": 1.0, "logprobs": True, "top_logprobs": 3}
        status, headers, body = await server.ask(**asked)
        chunks = await events(server, stream_options={"include_usage": True}, **asked)
    assert (status, headers["x-clawback-release"], body["object"]) == (200, "base", "chat.completion")
    assert chunks.pop() == "[DONE]"
    usage = chunks.pop()
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == body["usage"]["completion_tokens"]
    for choice in body["choices"]:
        mine = [c["choices"][0] for c in chunks if c["choices"][0]["index"] == choice["index"]]
        assert mine[0]["delta"] == {"role": "assistant", "content": ""}
        assert "".join(c["delta"].get("content", "") for c in mine) == choice["message"]["content"]
        listed = [entry for c in mine if c["logprobs"] for entry in c["logprobs"]["content"]]
        wanted = choice["logprobs"]["content"]
        assert [e["token"] for e in listed] == [e["token"] for e in wanted]
        assert [e["logprob"] for e in listed] == pytest.approx([e["logprob"] for e in wanted], abs=1e-4)
        assert all(len(e["top_logprobs"]) == 3 for e in wanted)
        assert mine[-1]["finish_reason"] == choice["finish_reason"]
        assert all(c["finish_reason"] is None for c in mine[:-1])
    assert body["choices"][0]["message"]["content"] != body["choices"][1]["message"]["content"]


async def test_the_capture_is_what_transformers_says_of_the_same_tokens(policy_model: Path) -> None:
    async with running(policy_model) as server:
        header = {"x-clawback-capture": "4"}
        _, _, body = await server.ask(header, seed=1, temperature=0.7, top_p=0.9)
        chunks = await events(server, header, seed=1, temperature=0.7, top_p=0.9)
    assert list(body)[-1] == "clawback"
    assert chunks[-1] == "[DONE]"
    assert chunks[-2]["object"] == "clawback.capture"
    for value in (body["clawback"], chunks[-2]["clawback"]):
        assert value["release_id"] == "base"
        capture = msgspec.convert(value["capture"], Capture)
        capture.check()
        prompt, reply = capture.prompt_token_ids.values(), capture.response_token_ids.values()
        assert bytes(i for i in reply if i < 256).decode("utf-8", "replace") is not None
        rows = reference(policy_model, [*prompt, *reply])[len(prompt) - 1 : -1]
        wanted = rows.gather(1, torch.tensor(reply)[:, None])[:, 0]
        assert capture.logprobs.values() == pytest.approx(wanted.tolist(), abs=1e-4)
        assert capture.topk_ids.shape == [len(reply), 4]
        assert capture.topk_logprobs.values() == pytest.approx(rows.topk(4).values.flatten().tolist(), abs=1e-4)
    assert len(reply) == body["usage"]["completion_tokens"]


async def test_plain_completions_whole_and_streamed(policy_model: Path) -> None:
    asked = {"prompt": [list(b"Hello"), list(b"Hel")], "seed": 2, "n": 2, "max_tokens": 6, "logprobs": 2}
    async with running(policy_model) as server:
        async with server.client.post("/v1/completions", json=asked) as response:
            whole = await response.json()
        async with server.client.post("/v1/completions", json={**asked, "stream": True}) as response:
            parts = (await response.text()).strip().split("\n\n")
        header = {"x-clawback-capture": "3"}
        async with server.client.post("/v1/completions", json={"prompt": "Hello"}, headers=header) as response:
            captured = msgspec.convert((await response.json())["clawback"]["capture"], Capture)
    assert parts.pop() == "data: [DONE]"
    chunks = [json.loads(part.removeprefix("data: "))["choices"][0] for part in parts]
    assert [choice["index"] for choice in whole["choices"]] == [0, 1, 2, 3], "two choices for each of two prompts"
    assert whole["usage"]["prompt_tokens"] == 8
    for choice in whole["choices"]:
        mine = [c for c in chunks if c["index"] == choice["index"]]
        assert "".join(c["text"] for c in mine) == choice["text"]
        for field in ("tokens", "text_offset"):
            listed = [value for c in mine if c["logprobs"] for value in c["logprobs"][field]]
            assert listed == choice["logprobs"][field]
        assert all(len(top) <= 2 for top in choice["logprobs"]["top_logprobs"])
        assert mine[-1]["finish_reason"] == choice["finish_reason"]
    assert captured.prompt_token_ids.values() == server.tokenizer.encode("Hello")
    assert captured.topk_ids.shape[1] == 3


async def test_without_the_header_there_is_no_capture(policy_model: Path) -> None:
    async with running(policy_model) as server:
        _, _, body = await server.ask()
        chunks = await events(server)
    assert "clawback" not in body
    assert all(c == "[DONE]" or c["object"] == "chat.completion.chunk" for c in chunks)


async def test_concurrent_requests_share_steps(policy_model: Path) -> None:
    async with running(policy_model) as server:
        before = _steps()
        answers = await asyncio.gather(*(server.ask(max_tokens=40, logit_bias={"256": -100}) for _ in range(8)))
        assert all(status == 200 for status, _, _ in answers)
        assert _steps() - before < 8 * 40 / 2, "eight requests of 40 tokens took far fewer than 320 steps"


def _steps() -> float:
    return next(s.value for m in metrics.POLICY_STEP_SECONDS.collect() for s in m.samples if s.name.endswith("_count"))


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({"temperature": 9}, "temperature", None),
        ({"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "messages[0].content[0]", None),
        ({"messages": [{"role": "user", "content": "x" * 600}]}, "messages", "context_length_exceeded"),
    ],
    ids=["field", "part", "context"],
)
async def test_errors_name_the_field_in_openais_form(
    policy_model: Path, body: dict[str, Any], param: str, code: str | None
) -> None:
    async with running(policy_model) as server:
        status, _, answer = await server.ask(**body)
    assert status == 400
    assert set(answer["error"]) == {"message", "type", "param", "code"}
    assert (answer["error"]["param"], answer["error"]["code"]) == (param, code)


async def test_a_limit_beyond_the_context_is_cut_to_what_is_left(policy_model: Path) -> None:
    async with running(policy_model) as server:
        words = [{"role": "user", "content": "x" * 480}]
        _, _, body = await server.ask(messages=words, max_tokens=10_000, logit_bias={"256": -100})
    assert body["usage"]["total_tokens"] == 512
    assert body["choices"][0]["finish_reason"] == "length"


async def test_too_many_waiting_requests_are_sent_away_with_a_time_to_return(policy_model: Path) -> None:
    async with running(policy_model, limits=Limits(max_batch=1), max_waiting=1) as server:
        answers = await asyncio.gather(*(server.ask(max_tokens=200, logit_bias={"256": -100}) for _ in range(6)))
    statuses = sorted(status for status, _, _ in answers)
    assert statuses == [200, 200, 429, 429, 429, 429]
    for status, headers, body in answers:
        if status == 429:
            assert int(headers["retry-after"]) >= 1
            assert body["error"]["type"] == "rate_limit_error"


async def test_a_client_that_leaves_stops_its_generation(policy_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    submitted = asyncio.Event()
    async with running(policy_model) as server:
        submit = server.worker.submit
        monkeypatch.setattr(server.worker, "submit", lambda requests: (submitted.set(), submit(requests))[1])
        for stream in (True, False):
            asked = {"messages": HI, "max_tokens": 400, "stream": stream, "logit_bias": {"256": -100}}
            submitted.clear()
            request = asyncio.create_task(server.client.post(CHAT, json=asked))
            await submitted.wait()
            before = _steps()
            if stream:
                (await request).close()
            else:
                request.cancel()
            await server.worker.empty.wait()
            assert _steps() - before < 380, "it stopped long before its 400 tokens"


async def test_a_failed_step_is_a_500_and_the_next_request_is_served(
    policy_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(policy_model) as server:
        with monkeypatch.context() as patch:
            patch.setattr(server.engine, "step", _broken)
            status, _, body = await server.ask()
        assert (status, body["error"]["type"]) == (500, "server_error")
        assert (await server.ask())[0] == 200
        assert not server.worker.failed.is_set()


async def test_an_engine_that_keeps_failing_gives_up(policy_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(policy_model) as server:
        monkeypatch.setattr(server.engine, "step", _broken)
        for _ in range(3):
            assert (await server.ask())[0] == 500
        await server.worker.failed.wait()


def _broken() -> None:
    raise RuntimeError("out of memory")


async def test_while_draining_new_requests_are_sent_away(policy_model: Path) -> None:
    async with running(policy_model) as server:
        server.policy.accepting = False
        status, headers, _ = await server.ask()
        with pytest.raises(RuntimeError, match="draining"):
            await server.policy.check_ready()
    assert status == 503
    assert "retry-after" in headers


async def test_models_name_the_context_and_what_serves(policy_model: Path) -> None:
    async with running(policy_model) as server:
        async with server.client.get("/v1/models") as response:
            listed = await response.json()
        async with server.client.get("/v1/models/none") as response:
            missing = (response.status, await response.json())
    assert [m["id"] for m in listed["data"]] == ["tiny"]
    assert listed["data"][0]["max_model_len"] == 512
    assert missing[0] == 404
    assert missing[1]["error"]["code"] == "model_not_found"
