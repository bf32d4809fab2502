"""What the policy puts on the wire, read by those who read it: the gateway's filter and the openai client."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest

from services.gateway.capture.builtin import HEADER, BuiltinCapture
from tests.tiny_model import write_model
from tests.unit.policy.support import CHAT, Running, running

ASK: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": 'Say "clawback": {}'}], "seed": 3}


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
async def server(model_dir: Path) -> AsyncIterator[Running]:
    async with running(model_dir) as it:
        yield it


@pytest.fixture
async def client(server: Running) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(api_key="none", base_url=str(server.client.make_url("/v1")), max_retries=0) as it:
        yield it


async def body_of(server: Running, **changes: Any) -> bytes:
    async with server.client.post(CHAT, json={**ASK, **changes}, headers={HEADER: "4"}) as answer:
        assert answer.status == 200
        return await answer.read()


async def test_the_gateway_cuts_the_capture_out_of_a_whole_answer(server: Running) -> None:
    taken = BuiltinCapture(b"")
    seen = taken.strip(await body_of(server))
    assert b"clawback" not in seen
    assert taken.release_id == "base"
    assert taken.capture is not None
    assert taken.capture.topk_ids.shape[1] == 4


@pytest.mark.parametrize("size", [1, 7, 100_000])
async def test_the_gateway_cuts_the_capture_out_of_a_stream(server: Running, size: int) -> None:
    raw = await body_of(server, stream=True)
    taken = BuiltinCapture(b"")
    seen = b"".join(taken.feed(raw[i : i + size]) for i in range(0, len(raw), size)) + taken.close()
    assert b"clawback" not in seen
    assert seen.endswith(b"data: [DONE]\n\n")
    assert taken.release_id == "base"
    assert taken.capture is not None


async def test_the_openai_client_reads_whole_answers(client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(**ASK, max_tokens=6, logprobs=True, top_logprobs=2, n=2)
    assert len(answer.choices) == 2
    assert answer.choices[0].finish_reason in ("stop", "length")
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    listed = answer.choices[0].logprobs
    assert listed is not None
    assert listed.content is not None
    assert all(len(token.top_logprobs) == 2 for token in listed.content)


async def test_the_openai_client_reads_streams(client: openai.AsyncOpenAI) -> None:
    whole = await client.chat.completions.create(**ASK, max_tokens=6)
    stream = await client.chat.completions.create(
        **ASK, max_tokens=6, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == whole.choices[0].message.content
    assert chunks[-1].usage == whole.usage or chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


async def test_the_openai_client_reads_plain_completions(client: openai.AsyncOpenAI) -> None:
    answer = await client.completions.create(model="tiny", prompt="Hello", max_tokens=4, logprobs=1)
    assert answer.choices[0].logprobs is not None
    stream = await client.completions.create(model="tiny", prompt="Hello", max_tokens=4, stream=True)
    assert [chunk.choices[0].finish_reason async for chunk in stream][-1] in ("stop", "length")


async def test_the_openai_client_raises_its_own_errors(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await client.chat.completions.create(**{**ASK, "temperature": 7})
    assert caught.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as caught:
        await client.chat.completions.create(**{**ASK, "messages": [{"role": "user", "content": "x" * 1000}]})
    assert caught.value.code == "context_length_exceeded"


async def test_the_openai_client_lists_models(client: openai.AsyncOpenAI) -> None:
    assert [model.id async for model in client.models.list()] == ["tiny"]
