"""The plain openai client through a gateway to a scripted upstream, the record on a real broker."""

from __future__ import annotations

import json
from pathlib import Path

import openai
import pytest
from aiohttp import web

from libs.streams.config import ServiceSettings
from tests.integration.gateway.harness import Upstream, chat_chunk, consume, gateway, sse, stream_bytes

pytestmark = pytest.mark.integration

CAPTURE = {
    "prompt_token_ids": {"dtype": "int32", "shape": [1], "data": "AQAAAA=="},
    "response_token_ids": {"dtype": "int32", "shape": [1], "data": "AgAAAA=="},
    "logprobs": {"dtype": "float32", "shape": [1], "data": "AACAvw=="},
    "topk_ids": {"dtype": "int32", "shape": [1, 1], "data": "AgAAAA=="},
    "topk_logprobs": {"dtype": "float32", "shape": [1, 1], "data": "AACAvw=="},
}
BESIDE = {"release_id": "maths@00001-abcdef01", "capture": CAPTURE}


def completion(text: str) -> dict[str, object]:
    message = {"role": "assistant", "content": text}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
    }


async def answer(request: web.Request, body: bytes) -> web.StreamResponse:
    asked = json.loads(body)
    headers = {"x-clawback-release": "maths@00001-abcdef01"}
    beside = {"clawback": BESIDE} if "x-clawback-capture" in request.headers else {}
    if not asked.get("stream"):
        return web.json_response({**completion("Four."), **beside}, headers=headers)
    event = {"object": "clawback.capture", **beside}
    pieces = [sse(chat_chunk("Fo", role="assistant"), done=False), sse(chat_chunk("ur.", "stop"), done=False)]
    last = sse(event, done=False) if beside else b""
    return await stream_bytes(request, *pieces, last + b"data: [DONE]\n\n", headers=headers)


@pytest.mark.parametrize("streamed", [False, True])
async def test_exchange_reaches_the_broker(
    streamed: bool, tmp_path: Path, kafka_settings: ServiceSettings, topic_suffix: str
) -> None:
    kafka = {k: v for k, v in kafka_settings.model_dump().items() if k.startswith("kafka_")}
    async with (
        Upstream(answer).running() as upstream,
        gateway(upstream.url, tmp_path / "spool", stream_output_suffix=topic_suffix, **kafka) as served,
        openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="sk-client") as client,
    ):
        headers = {"x-reef-scenario": "maths", "x-reef-tag-session": "s1"}
        messages = [{"role": "user", "content": "2+2?"}]
        if streamed:
            text = ""
            async for chunk in await client.chat.completions.create(
                model="m", messages=messages, stream=True, extra_headers=headers
            ):
                assert chunk.object == "chat.completion.chunk"
                text += chunk.choices[0].delta.content or ""
        else:
            reply = await client.chat.completions.create(model="m", messages=messages, extra_headers=headers)
            assert "clawback" not in reply.model_dump()
            text = reply.choices[0].message.content
        assert text == "Four."
        assert upstream.seen[0].headers["x-reef-scenario"] == "maths"
        assert "sk-client" not in str(upstream.seen[0].headers)
        (record,) = await consume(kafka_settings.kafka_bootstrap_servers, "traffic.raw" + topic_suffix, 1)
    assert record.scenario == "maths"
    assert record.outcome == "completed"
    assert record.release_id == "maths@00001-abcdef01"
    assert record.headers["x-reef-tag-session"] == "s1"
    assert record.request["messages"] == messages
    assert record.response["choices"][0]["message"]["content"] == "Four."
    assert record.response["object"] == "chat.completion"
    assert record.capture is not None
    assert record.capture.response_token_ids.values() == [2]
