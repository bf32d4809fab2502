"""Faults of an engine and of the log meet the follower in the background: it must go on, and the stamp stay true."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from libs.contracts import Adapter, encode
from libs.contracts.release_chain import Chain
from libs.learning.engine.refused import ReleaseRefused
from libs.streams import follow as streams_follow
from libs.streams.config import ServiceSettings
from libs.streams.types import StreamRecord
from services.policy import follow as policy_follow
from services.policy.external.engines import ENGINES
from services.policy.external.proxy import Proxy
from services.policy.external.releases import ExternalRelease, ExternalReleases
from services.policy.follow import ReleaseFollower
from services.policy.scenarios import Held, Scenarios
from tests.eventually import eventually
from tests.unit.policy.test_policy_external import adapter, world
from tests.unit.policy.test_policy_scenarios import chain_of, event

WEIGHTS = Adapter(kind="full", uri="/none", digest="0")


class Engine:
    """Loads anything; refuses to put the base back while `away`."""

    away = False

    async def load(self, release_id: str, weights: Adapter) -> Held[ExternalRelease]:
        return Held(ExternalRelease(release_id, weights), 0)

    async def load_base(self, _scenario: str) -> Held[ExternalRelease]:
        if self.away:
            raise ReleaseRefused("the engine does not answer", reason="engine_away")
        return Held(ExternalRelease("base"), 0)


def scenarios_on(engine: Engine) -> Scenarios[ExternalRelease]:
    return Scenarios(ExternalRelease("base"), engine.load, budget_bytes=4, load_base=engine.load_base)


async def test_a_base_that_cannot_be_put_back_is_a_refusal_and_comes_later() -> None:
    engine = Engine()
    scenarios = scenarios_on(engine)
    await scenarios.update("anna", chain_of("anna", ("anna@00001-x", WEIGHTS)))
    engine.away = True
    assert not await scenarios.update("anna", Chain(scenario="anna"))
    assert (scenarios.serving(), scenarios.behind()) == ({"anna": "anna@00001-x"}, ["anna"])
    engine.away = False
    assert await scenarios.update("anna", Chain(scenario="anna"))
    assert scenarios.serving() == {"anna": "base"}


def logged(*events: Any) -> list[StreamRecord]:
    return [StreamRecord("policy.releases", 0, n, b"anna", encode(e)) for n, e in enumerate(events)]


async def test_the_follower_outlives_an_error_that_nobody_foresaw(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (event("anna", f"anna@0000{n}-x", n, "base", WEIGHTS) for n in (1, 2))
    reads = 0

    async def read(*_: object, **__: object) -> AsyncIterator[StreamRecord | None]:
        nonlocal reads
        reads += 1
        for record in logged(first, second)[:reads]:
            yield record
        yield None
        if reads == 1:
            raise AssertionError("Partition is not assigned")  # as the client's own checks say it
        await asyncio.Event().wait()

    monkeypatch.setattr(policy_follow, "read", read)
    scenarios = scenarios_on(Engine())
    follower = ReleaseFollower(ServiceSettings(), scenarios)
    follower.start()
    try:
        await eventually(lambda: scenarios.serving() == {"anna": second.release_id}, within_seconds=5)
    finally:
        await follower.stop()


async def test_every_follower_of_a_topic_outlives_one_too(monkeypatch: pytest.MonkeyPatch) -> None:
    reads = 0

    async def read(*_: object, **__: object) -> AsyncIterator[StreamRecord | None]:
        nonlocal reads
        reads += 1
        yield None
        if reads == 1:
            raise AssertionError("Partition is not assigned")
        yield StreamRecord("tombstones", 0, 0, None, b"late")
        await asyncio.Event().wait()

    monkeypatch.setattr(streams_follow, "read", read)
    seen: list[bytes] = []
    follower = streams_follow.Follower(ServiceSettings(), ["tombstones"], lambda record: seen.append(record.value))
    await follower.start()
    try:
        await eventually(lambda: seen == [b"late"], within_seconds=5)
    finally:
        await follower.stop()


async def test_a_client_that_leaves_during_a_swap_leaves_the_stamp_true(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered = asyncio.Event()
    real = ENGINES["vllm"].reload

    async def late(self: Any, path: str) -> None:
        await real(self, path)
        await answered.wait()

    monkeypatch.setattr(ENGINES["vllm"], "reload", late)
    async with world("vllm") as it:
        full = adapter(tmp_path, "full", "full")
        await it.scenarios.update("anna", chain_of("anna", ("anna@00001-x", full)), load=False)
        leaving = asyncio.create_task(it.scenarios.acquire("anna"))
        await eventually(lambda: it.engine.weights == full.uri)
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
        answered.set()
        answer = await it.ask("ben")
        assert (it.said(answer), answer[1]) == (full.uri, "anna@00001-x"), "these weights answer whoever asks"


async def test_an_adapter_that_was_loaded_again_for_its_last_request_goes_after_it(tmp_path: Path) -> None:
    async with world("vllm") as it:
        one, two = (("anna@00001-x", adapter(tmp_path, "a")), ("anna@00002-y", adapter(tmp_path, "b")))
        await it.scenarios.update("anna", chain_of("anna", one))
        it.engine.release_answers.clear()
        running = asyncio.create_task(it.ask("anna"))
        await it.engine.started.wait()
        await it.scenarios.update("anna", chain_of("anna", one, two))
        it.engine.release_answers.set()
        it.said(await running)
        await eventually(lambda: one[0] not in it.engine.adapters)
        proxy_releases = it.scenarios._load.__self__  # type: ignore[attr-defined]
        async with proxy_releases.using(ExternalRelease(*one)) as release:
            await proxy_releases.reload_adapter(release)  # it had waited for a swap, and found its adapter gone
            assert one[0] in it.engine.adapters
        await eventually(lambda: one[0] not in it.engine.adapters, within_seconds=5)


@pytest.mark.parametrize("how", ["stalls", "drops"])
async def test_a_stream_that_the_engine_breaks_off_is_cut_and_no_second_answer_is_written_into_it(how: str) -> None:
    async def chat(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b"data: {}\n\n")
        if how == "stalls":
            await asyncio.sleep(5)
        assert request.transport is not None
        request.transport.abort()
        return response

    async def models(_request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "base"}]})

    engine_app = web.Application()
    engine_app.router.add_get("/v1/models", models)
    engine_app.router.add_post("/v1/chat/completions", chat)
    async with TestServer(engine_app) as server, aiohttp.ClientSession(server.make_url("/")) as session:
        releases = ExternalReleases(ENGINES["vllm"](session, 10.0), "/base")
        app = web.Application()
        base: Scenarios[ExternalRelease] = Scenarios(ExternalRelease("base"), releases.load, budget_bytes=1)
        Proxy(session, base, releases, ready=lambda: True, timeout_seconds=0.3).routes(app)
        async with TestServer(app) as front:
            reader, writer = await asyncio.open_connection(front.host, front.port)
            head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}"
            writer.write(head)
            try:
                answer = await asyncio.wait_for(reader.read(), 4)
            except ConnectionResetError:
                answer = b"cut"
            writer.close()
    assert answer == b"cut" or (answer.count(b"HTTP/1.1") == 1 and not answer.endswith(b"0\r\n\r\n")), answer
