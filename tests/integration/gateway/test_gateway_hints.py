"""Every identifier of the design's table reaches the record, from a header or from the body."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from libs.dialects.hints import session_hint
from tests.integration.gateway.harness import Upstream, gateway

pytestmark = pytest.mark.integration

ID = "0198c2f4-7d1e-7b3a-9c55-2f6d8e1a4b70"
LEGACY_USER = f"user_{'ab' * 32}_account_{ID}_session_{ID}"

HEADERS = [
    "X-Session-Id",
    "X-Claude-Code-Session-Id",
    "session_id",
    "conversation_id",
    "session-id",
    "thread-id",
    "x-session-affinity",
    "X-Task-ID",
    "agent-session-id",
    "x-litellm-session-id",
    "X-OpenWebUI-Chat-Id",
]
BODIES: dict[str, dict[str, Any]] = {
    "metadata.user_id, first form": {"metadata": {"user_id": LEGACY_USER}},
    "metadata.user_id, second form": {"metadata": {"user_id": json.dumps({"device_id": "d", "session_id": ID})}},
    "session_id": {"session_id": ID},
    "conversation_id": {"conversation_id": ID},
    "prompt_cache_key": {"prompt_cache_key": ID},
    "litellm_session_id": {"litellm_session_id": ID},
}


async def fine(request: web.Request, body: bytes) -> web.StreamResponse:
    return web.json_response({"id": "r", "choices": []})


async def recorded(tmp_path: Path, headers: dict[str, str], body: dict[str, Any], path: str) -> Any:
    async with (
        Upstream(fine).running() as upstream,
        gateway(upstream.url, tmp_path, gateway_capture="none") as served,
        aiohttp.ClientSession() as session,
    ):
        async with session.post(served.url + path, json=body, headers=headers) as response:
            assert response.status == 200
        return await served.record()


@pytest.mark.parametrize("name", HEADERS)
async def test_a_hint_in_a_header(name: str, tmp_path: Path) -> None:
    record = await recorded(tmp_path, {name: ID}, {"messages": []}, "/v1/chat/completions")
    assert session_hint(record.headers, record.request) == (name.lower(), ID)


@pytest.mark.parametrize("name", BODIES)
async def test_a_hint_in_the_body(name: str, tmp_path: Path) -> None:
    record = await recorded(tmp_path, {}, {"messages": [], **BODIES[name]}, "/v1/messages")
    found = session_hint(record.headers, record.request)
    assert found is not None and found[1] == ID


async def test_a_chain_of_responses(tmp_path: Path) -> None:
    body = {"input": "shorter", "previous_response_id": "resp_68af4030592c81938ec0a5fbab4a3e9f05438e46b5f69a3b"}
    record = await recorded(tmp_path, {}, body, "/v1/responses")
    assert record.request == body
