"""The gateway as its own process on a real broker: killed, stopped, and cut off from the broker."""

from __future__ import annotations

import asyncio
import json
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from deploy.local import broker as local_broker
from deploy.topics.create import create
from libs.contracts import TrafficRaw
from libs.streams.config import ServiceSettings
from libs.streams.tap import tap
from tests.integration.gateway.harness import (
    Upstream,
    chat_chunk,
    consume,
    gateway,
    process,
    spooled,
    sse,
    stream_bytes,
)

pytestmark = pytest.mark.integration

CHAT = "/v1/chat/completions"


async def answer(request: web.Request, body: bytes) -> web.StreamResponse:
    if json.loads(body).get("stream"):
        return await stream_bytes(request, sse(chat_chunk("Hi", "stop", role="assistant")))
    return web.json_response({"id": "c", "choices": [{"index": 0, "message": {"content": "Hi"}}]})


def settings_env(upstream: str, home: Path, kafka: dict[str, str], suffix: str = "") -> dict[str, str]:
    return {
        "CLAWBACK_HOME": str(home),
        "CLAWBACK_HTTP_PORT": "0",
        "CLAWBACK_GATEWAY_UPSTREAM_URL": upstream,
        "CLAWBACK_STREAM_OUTPUT_SUFFIX": suffix,
        **kafka,
    }


AWAY = {"CLAWBACK_KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:9", "CLAWBACK_KAFKA_IDEMPOTENT_PRODUCER": "false"}


async def ask(session: aiohttp.ClientSession, url: str, number: int) -> None:
    body = {"n": number, "stream": bool(number % 2), "messages": [{"role": "user", "content": f"q{number}"}]}
    async with session.post(url + CHAT, json=body) as response:
        assert response.status == 200
        await response.read()


async def test_kill_9_while_the_broker_is_away_loses_no_served_exchange(
    tmp_path: Path, kafka_env: dict[str, str], topic_suffix: str
) -> None:
    done: list[int] = []
    async with Upstream(answer).running() as upstream, aiohttp.ClientSession() as session:

        async def keep_asking(url: str, first: int) -> None:
            for number in range(first, first + 1000):
                try:
                    await ask(session, url, number)
                except aiohttp.ClientError:
                    return
                done.append(number)
                if len(done) >= 120:
                    enough.set()

        enough = asyncio.Event()
        with process(settings_env(upstream.url, tmp_path, AWAY), tmp_path / "log1") as (child, url):
            async with asyncio.TaskGroup() as group:
                for lane in range(4):
                    group.create_task(keep_asking(url, lane * 1000))
                await asyncio.wait_for(enough.wait(), 60)
                child.send_signal(signal.SIGKILL)
        with process(settings_env(upstream.url, tmp_path, kafka_env, topic_suffix), tmp_path / "log2") as (child, url):
            await ask(session, url, 9999)
            records = await consume(
                kafka_env["CLAWBACK_KAFKA_BOOTSTRAP_SERVERS"], "traffic.raw" + topic_suffix, len(done) + 1
            )
    recorded = Counter(r.request["n"] for r in records)
    assert set(done) | {9999} <= set(recorded)
    assert max(recorded.values()) == 1
    assert len({r.exchange_id for r in records}) == len(records)


async def test_kill_9_while_publishing_repeats_only_under_the_same_id(
    tmp_path: Path, kafka_env: dict[str, str], kafka_settings: ServiceSettings, topic_suffix: str
) -> None:
    env = settings_env("", tmp_path, kafka_env, topic_suffix)
    async with Upstream(answer).running() as upstream, aiohttp.ClientSession() as session:
        env["CLAWBACK_GATEWAY_UPSTREAM_URL"] = upstream.url
        total = 0
        for _ in range(3):
            with process(env, tmp_path / "log") as (child, url):
                for _ in range(40):
                    await ask(session, url, total)
                    total += 1
                child.send_signal(signal.SIGKILL)
        with process(env, tmp_path / "log") as (child, url):
            await ask(session, url, total)
            child.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(child.wait, 20) == 0
    records = [t.record async for t in tap(kafka_settings, ["traffic.raw" + topic_suffix])]
    assert all(isinstance(r, TrafficRaw) for r in records)
    by_id = {r.exchange_id: r.request["n"] for r in records if isinstance(r, TrafficRaw)}
    assert sorted(by_id.values()) == list(range(total + 1))


async def test_sigterm_finishes_open_requests_and_sends_their_records(
    tmp_path: Path, kafka_env: dict[str, str], topic_suffix: str
) -> None:
    reached, go_on = asyncio.Event(), asyncio.Event()

    async def slow(request: web.Request, body: bytes) -> web.StreamResponse:
        reached.set()
        await go_on.wait()
        return await answer(request, body)

    async with Upstream(slow).running() as upstream, aiohttp.ClientSession() as session:
        env = settings_env(upstream.url, tmp_path, kafka_env, topic_suffix)
        with process(env, tmp_path / "log") as (child, url):
            open_request = asyncio.create_task(ask(session, url, 1))
            await asyncio.wait_for(reached.wait(), 20)
            child.send_signal(signal.SIGTERM)
            await refuses(url)
            go_on.set()
            await open_request
            assert await asyncio.to_thread(child.wait, 20) == 0
    (record,) = await consume(kafka_env["CLAWBACK_KAFKA_BOOTSTRAP_SERVERS"], "traffic.raw" + topic_suffix, 1)
    assert record.request["n"] == 1 and record.outcome == "completed"
    assert spooled(tmp_path / "spool" / "gateway") == []


async def refuses(url: str) -> None:
    """Until no new connection is taken any more."""
    host, port = url.removeprefix("http://").split(":")
    async with asyncio.timeout(20):
        while True:
            try:
                _, writer = await asyncio.open_connection(host, int(port))
            except ConnectionError:
                return
            writer.close()


async def test_a_broker_that_hangs_and_goes_on(tmp_path: Path) -> None:
    """Clients are served all the while; everything arrives in order, once."""
    broker, bootstrap = await asyncio.to_thread(local_broker.start, tmp_path / "broker.log")
    kafka: dict[str, Any] = {"kafka_bootstrap_servers": bootstrap, "kafka_idempotent_producer": False}
    try:
        await create(ServiceSettings(**kafka), local=True, suffix=".outage")
        async with (
            Upstream(answer).running() as upstream,
            gateway(upstream.url, tmp_path / "spool", stream_output_suffix=".outage", **kafka) as served,
            aiohttp.ClientSession(headers={"x-session-id": "one"}) as session,
        ):
            for number in range(10):
                await ask(session, served.url, number)
            assert await served.gateway.publisher.drained(20)
            broker.signal(signal.SIGSTOP)
            for number in range(10, 60):
                await ask(session, served.url, number)
            assert served.gateway.spool.records == 50
            broker.signal(signal.SIGCONT)
            assert await served.gateway.publisher.drained(60)
        records = await consume(bootstrap, "traffic.raw.outage", 60)
    finally:
        await asyncio.to_thread(broker.stop, 5.0)
    assert [r.request["n"] for r in records] == list(range(60))


async def test_a_record_over_the_topic_limit_arrives_by_claim_check(
    tmp_path: Path, kafka_settings: ServiceSettings, topic_suffix: str
) -> None:
    url = (tmp_path / "claims").as_uri()
    kafka = {k: v for k, v in kafka_settings.model_dump().items() if k.startswith("kafka_")}
    kafka |= {"kafka_max_request_size": 512 * 1024, "claims_url": url}
    async with (
        Upstream(answer).running() as upstream,
        gateway(upstream.url, tmp_path / "spool", stream_output_suffix=topic_suffix, **kafka) as served,
        aiohttp.ClientSession() as session,
    ):
        body = {"messages": [{"role": "user", "content": "long " * 200_000}]}
        async with session.post(served.url + CHAT, json=body) as response:
            assert response.status == 200
        assert await served.gateway.publisher.drained(20)
    settings = kafka_settings.model_copy(update={"claims_url": url})
    (tapped,) = [t async for t in tap(settings, ["traffic.raw" + topic_suffix])]
    assert len(tapped.source.value) < 1000
    assert tapped.error is None and tapped.record is not None
    assert getattr(tapped.record, "request") == body  # noqa: B009
