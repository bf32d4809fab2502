"""Bounds: a record may be late, too much or impossible; the client is served all the same, and each loss is counted."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from services.gateway import recorder as recorder_module
from services.gateway.recorder import metrics
from tests.integration.gateway.harness import gateway
from tests.integration.gateway.test_gateway_recording import CHAT, answers, post, text_of, whole

pytestmark = pytest.mark.integration


def dropped(reason: str) -> float:
    return float(metrics.GATEWAY_DROPPED.labels(reason)._value.get())


def untrainable(reason: str) -> float:
    return float(metrics.GATEWAY_UNTRAINABLE.labels(reason)._value.get())


async def test_the_client_waits_for_a_slow_record_only_briefly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    release = asyncio.Event()

    async def slow(self: Any, exchange: Any, served: Any) -> None:
        await release.wait()
        await original(self, exchange, served)

    original = recorder_module.Recorder._in_thread
    monkeypatch.setattr(recorder_module.Recorder, "_in_thread", slow)
    monkeypatch.setattr(recorder_module, "LARGE_BYTES", 0)
    async with (
        answers(whole).running() as upstream,
        gateway(upstream.url, tmp_path, gateway_record_wait_seconds=0.05) as served,
    ):
        assert text_of(json.loads(await post(served))) == "Hello"
        assert served.gateway.spool.records == 0
        release.set()
        await served.record()


async def test_a_full_spool_drops_with_a_count_and_serves_on(tmp_path: Path) -> None:
    before = dropped("spool_full")
    bound = {"gateway_spool_max_bytes": 1024 * 1024, "gateway_spool_segment_bytes": 64 * 1024}
    async with answers(whole).running() as upstream, gateway(upstream.url, tmp_path, **bound) as served:
        for _ in range(4):
            assert text_of(json.loads(await post(served, body={"pad": "x" * 400_000}))) == "Hello"
        assert len(await served.records()) == 2
        assert dropped("spool_full") == before + 2
        async with aiohttp.ClientSession() as session, session.get(f"{served.url}/readyz") as ready:
            assert ready.status == 200  # room for small ones is left


async def test_a_disk_that_refuses_drops_with_a_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = dropped("spool_error")
    async with answers(whole).running() as upstream, gateway(upstream.url, tmp_path) as served:

        def refuses(key: bytes | None, value: bytes) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(served.gateway.spool, "append", refuses)
        assert text_of(json.loads(await post(served))) == "Hello"
    assert dropped("spool_error") == before + 1


async def test_a_request_that_is_no_json_is_served_and_counted(tmp_path: Path) -> None:
    before = dropped("request_not_json")
    async with answers(whole).running() as upstream, gateway(upstream.url, tmp_path) as served:
        async with aiohttp.ClientSession() as session, session.post(served.url + CHAT, data=b"{no") as response:
            assert response.status == 200
        assert await served.records() == []
    assert dropped("request_not_json") == before + 1


async def test_turns_without_a_capture_are_counted_by_reason(tmp_path: Path) -> None:
    async with answers(whole).running() as upstream:
        for mode, reason in (("none", "upstream_gives_none"), ("builtin", "missing")):
            before = untrainable(reason)
            async with gateway(upstream.url, tmp_path / mode, gateway_capture=mode) as served:
                await post(served)
            assert untrainable(reason) == before + 1


async def test_a_scenario_is_routed_to_its_own_upstream(tmp_path: Path) -> None:
    async with answers(whole).running() as main, answers(whole).running() as other:
        routes = json.dumps({"maths": {"url": other.url, "api_key": "other-key", "capture": "none"}})
        async with gateway(main.url, tmp_path, gateway_routes=routes, gateway_upstream_api_key="main-key") as served:
            await post(served, x_reef_scenario="maths")
            await post(served)
            await post(served, "/v1/embeddings", x_reef_scenario="maths")
    assert [s.headers["authorization"] for s in other.seen] == ["Bearer other-key"] * 2
    assert [s.headers["authorization"] for s in main.seen] == ["Bearer main-key"]


async def test_a_large_record_goes_through_the_thread_and_arrives_whole(tmp_path: Path) -> None:
    async with answers(whole).running() as upstream, gateway(upstream.url, tmp_path) as served:
        await post(served, body={"messages": [{"content": "z" * 3_000_000}]})
        record = await served.record()
    assert len(record.request["messages"][0]["content"]) == 3_000_000


async def test_a_target_in_absolute_form_is_refused(tmp_path: Path) -> None:
    async with answers(whole).running() as upstream, gateway(upstream.url, tmp_path) as served:
        port = int(served.url.rsplit(":", 1)[1].split("/")[0])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST http://other/v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}")
        head = await reader.readuntil(b"\r\n\r\n")
        writer.close()
        assert head.startswith(b"HTTP/1.1 400 ") and b"x-clawback-error: bad_target" in head
