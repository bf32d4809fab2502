"""vLLM and SGLang in place of the built-in engine: loads, names, unloads, whole weights, restarts of the engine."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from libs.contracts import Adapter
from libs.contracts.release_chain import Chain
from services.policy.external.engines import ENGINES
from services.policy.external.proxy import Proxy
from services.policy.external.releases import ExternalRelease, ExternalReleases
from services.policy.scenarios import Scenarios
from tests.unit.policy.fake_engines import BASE, FakeEngine, FakeSglang, FakeVllm
from tests.unit.policy.test_policy_scenarios import chain_of

CHAT = "/v1/chat/completions"
FAKES = {"vllm": FakeVllm, "sglang": FakeSglang}


class World:
    """An engine, the proxy before it, and a client of the proxy."""

    def __init__(self, engine: FakeEngine, scenarios: Scenarios[ExternalRelease], client: TestClient[Any, Any]) -> None:
        self.engine, self.scenarios, self.client = engine, scenarios, client

    async def ask(self, scenario: str = "anna", **body: Any) -> tuple[int, str | None, Any]:
        """(status, release header, parsed body)."""
        headers = {"x-reef-scenario": scenario, "authorization": "Bearer of-the-client"}
        async with self.client.post(CHAT, json={"model": "any", "messages": [], **body}, headers=headers) as answer:
            return answer.status, answer.headers.get("x-clawback-release"), await answer.json()

    def said(self, answer: tuple[int, str | None, Any]) -> str:
        assert answer[0] == 200, answer
        return str(answer[2]["choices"][0]["message"]["content"])

    def unloads(self) -> list[str]:
        return [value for what, value in self.engine.seen if what == "unload"]


@asynccontextmanager
async def world(kind: str, *, max_adapters: int = 4, paths: str = "") -> AsyncIterator[World]:
    fake = FAKES[kind]()
    server = TestServer(fake.app())
    await server.start_server()
    async with aiohttp.ClientSession(
        server.make_url("/"), headers={"authorization": "Bearer of-the-engine"}
    ) as session:
        engine = ENGINES[kind](session, 10.0)
        releases = ExternalReleases(engine, "/models/base", paths)
        scenarios: Scenarios[ExternalRelease] = Scenarios(
            ExternalRelease("base"),
            releases.load,
            budget_bytes=max_adapters,
            on_change=releases.serving,
            load_base=releases.load_base,
        )
        app = web.Application()
        Proxy(session, scenarios, releases, ready=lambda: True, timeout_seconds=10.0).routes(app)
        async with TestClient(TestServer(app)) as client:
            yield World(fake, scenarios, client)
    await server.close()


@pytest.fixture(params=FAKES)
async def it(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    async with world(request.param) as made:
        yield made


def adapter(folder: Path, name: str = "a", kind: str = "lora") -> Adapter:
    """A published release; the fake engines look at its path only."""
    target = folder / name
    target.mkdir(exist_ok=True)
    file = target / ("adapter_model.safetensors" if kind == "lora" else "model.safetensors")
    file.write_bytes(name.encode())
    return Adapter(kind=kind, uri=str(target), digest=hashlib.sha256(name.encode()).hexdigest())  # type: ignore[arg-type]


async def test_each_scenario_gets_its_adapter_by_name(it: World, tmp_path: Path) -> None:
    await it.scenarios.update("anna", chain_of("anna", ("anna@00001-x", adapter(tmp_path))))
    await it.scenarios.update("ben", chain_of("ben", ("ben@00001-y", adapter(tmp_path, "b"))))
    answers = await asyncio.gather(*(it.ask(name) for name in ("anna", "ben", "nobody")))
    assert [it.said(a) for a in answers] == ["base+anna@00001-x", "base+ben@00001-y", "base"]
    assert [a[1] for a in answers] == ["anna@00001-x", "ben@00001-y", "base"]
    models = {body["model"] for what, body in it.engine.seen if what == "chat"}
    assert BASE in models
    assert all(body["authorization"] == "Bearer of-the-engine" for what, body in it.engine.seen if what == "chat")


async def test_streams_pass_through_with_the_release_in_the_header(it: World, tmp_path: Path) -> None:
    await it.scenarios.update("anna", chain_of("anna", ("anna@00001-x", adapter(tmp_path))))
    body = {"model": "any", "messages": [], "stream": True}
    async with it.client.post(CHAT, json=body, headers={"x-reef-scenario": "anna"}) as answer:
        text = await answer.text()
        assert answer.headers["x-clawback-release"] == "anna@00001-x"
    assert text.count("data: ") == 3
    assert text.endswith("data: [DONE]\n\n")


async def test_fields_for_the_capture_reach_the_engine(it: World) -> None:
    await it.ask(logprobs=True, top_logprobs=5, return_token_ids=True)
    body = it.engine.seen[-1][1]
    assert (body["logprobs"], body["top_logprobs"], body["return_token_ids"]) == (True, 5, True)


async def test_a_replaced_adapter_is_unloaded_when_its_last_request_has_ended(it: World, tmp_path: Path) -> None:
    one, two = ("anna@00001-x", adapter(tmp_path)), ("anna@00002-y", adapter(tmp_path, "b"))
    await it.scenarios.update("anna", chain_of("anna", one))
    it.engine.release_answers.clear()
    old = asyncio.create_task(it.ask())
    await it.engine.started.wait()
    await it.scenarios.update("anna", chain_of("anna", one, two))
    assert it.unloads() == []
    it.engine.release_answers.set()
    assert it.said(await old) == "base+anna@00001-x"
    assert it.said(await it.ask()) == "base+anna@00002-y"
    await it.engine.unloaded.wait()
    assert list(it.engine.adapters) == ["anna@00002-y"]


async def test_an_adapter_that_the_engine_refuses_leaves_the_former_in_place(it: World, tmp_path: Path) -> None:
    one, two = ("anna@00001-x", adapter(tmp_path)), ("anna@00002-y", adapter(tmp_path, "unfit"))
    await it.scenarios.update("anna", chain_of("anna", one))
    assert not await it.scenarios.update("anna", chain_of("anna", one, two))
    assert it.said(await it.ask()) == "base+anna@00001-x"


async def test_a_changed_file_never_reaches_the_engine(it: World, tmp_path: Path) -> None:
    wrong = adapter(tmp_path)
    (tmp_path / "a" / "adapter_model.safetensors").write_bytes(b"changed")
    assert not await it.scenarios.update("anna", chain_of("anna", ("anna@00001-x", wrong)))
    assert it.engine.seen == []


async def test_an_engine_that_was_restarted_gets_its_adapters_back(it: World, tmp_path: Path) -> None:
    await it.scenarios.update("anna", chain_of("anna", ("anna@00001-x", adapter(tmp_path))))
    it.engine.adapters.clear()
    assert it.said(await it.ask()) == "base+anna@00001-x"
    assert len([1 for what, _ in it.engine.seen if what == "load"]) == 2


async def test_an_adapter_that_is_loaded_already_is_fine(it: World, tmp_path: Path) -> None:
    it.engine.adapters["anna@00001-x"] = "/from/before"
    assert await it.scenarios.update("anna", chain_of("anna", ("anna@00001-x", adapter(tmp_path))))


async def test_whole_weights_change_only_between_requests_and_no_request_fails(it: World, tmp_path: Path) -> None:
    it.engine.release_answers.clear()
    running = asyncio.create_task(it.ask("anna"))
    await it.engine.started.wait()
    full = adapter(tmp_path, "full", "full")
    swap = asyncio.create_task(it.scenarios.update("anna", chain_of("anna", ("anna@00001-x", full))))
    late = [asyncio.create_task(it.ask("anna")) for _ in range(3)]
    it.engine.release_answers.set()
    assert it.said(await running) == "base"
    assert await swap
    answers = [await task for task in late]
    assert not it.engine.swapped_while_generating
    for answer in answers:
        assert it.said(answer) == (full.uri if answer[1] == "anna@00001-x" else "base"), "the stamp is the truth"
    assert it.said(await it.ask("anna")) == full.uri
    assert ("reset", None) in it.engine.seen, "no cached prompt outlives the weights that made it"


async def test_a_rollback_to_the_base_puts_its_whole_weights_back(it: World, tmp_path: Path) -> None:
    await it.scenarios.update("anna", chain_of("anna", ("anna@00001-x", adapter(tmp_path, "full", "full"))))
    assert await it.scenarios.update("anna", Chain(scenario="anna"))
    answer = await it.ask("anna")
    assert (it.said(answer), answer[1]) == ("/models/base", "base")


async def test_whole_weights_that_fail_to_load_give_way_to_the_former(it: World, tmp_path: Path) -> None:
    one = ("anna@00001-x", adapter(tmp_path, "full", "full"))
    await it.scenarios.update("anna", chain_of("anna", one))
    unfit = ("anna@00002-y", adapter(tmp_path, "unfit", "full"))
    assert not await it.scenarios.update("anna", chain_of("anna", one, unfit))
    answer = await it.ask("anna")
    assert (it.said(answer), answer[1]) == (one[1].uri, one[0])


async def test_whole_weights_of_a_second_scenario_are_refused(it: World, tmp_path: Path) -> None:
    await it.scenarios.update("anna", chain_of("anna", ("anna@00001-x", adapter(tmp_path, "full", "full"))))
    assert not await it.scenarios.update("ben", chain_of("ben", ("ben@00001-y", adapter(tmp_path, "other", "full"))))
    answer = await it.ask("ben")
    assert answer[1] == "anna@00001-x", "the engine has one set of weights: whatever answers is stamped with it"


async def test_more_scenarios_than_adapters_take_turns(tmp_path: Path) -> None:
    async with world("vllm", max_adapters=1) as it:
        for name in ("anna", "ben"):
            await it.scenarios.update(name, chain_of(name, (f"{name}@00001-x", adapter(tmp_path, name))))
        for name in ("anna", "ben", "anna"):
            assert it.said(await it.ask(name)) == f"base+{name}@00001-x"
        assert "anna@00001-x" in it.unloads()


async def test_the_engine_sees_checkpoints_under_its_own_path(tmp_path: Path) -> None:
    async with world("vllm", paths=f"{tmp_path}=/mnt/checkpoints") as it:
        await it.scenarios.update("anna", chain_of("anna", ("anna@00001-x", adapter(tmp_path))))
        assert it.engine.adapters == {"anna@00001-x": "/mnt/checkpoints/a"}


async def test_an_engine_that_is_away_is_a_502_with_a_time_to_return(it: World) -> None:
    await it.ask()  # the base model's name is known from here on
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(aiohttp.ClientSession, "_request", _refused)
        # the proxy's own client is another session; ask the handler through a raw connection
        reader, writer = await asyncio.open_connection(it.client.host, it.client.port)
        writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}"
        )
        answer = (await reader.read()).decode()
        writer.close()
    assert answer.startswith("HTTP/1.1 502")
    assert "retry-after" in answer.lower()


async def _refused(*_: object, **__: object) -> None:
    raise aiohttp.ClientConnectionError("connection refused")


async def test_other_routes_pass_through(it: World) -> None:
    async with it.client.get("/v1/models") as answer:
        assert (await answer.json())["data"][0]["id"] == BASE
