"""Releases reach a running policy process through the broker: swaps under load, refusals, rollbacks, kills."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest

from deploy.local.process import wait_until
from libs.contracts import Adapter, PolicyRelease
from tests.integration.policy.world import CHAT, CLOSE, Policy, Publisher, off_by, policy, question

pytestmark = pytest.mark.integration


def ask(server: Policy, scenario: str, text: str = "Hi", **changes: Any) -> tuple[str, dict[str, Any]]:
    """(release header, body) of one captured answer."""
    headers = {"x-reef-scenario": scenario, "x-clawback-capture": "4"}
    answer = httpx.post(server.url + CHAT, json=question(text, **changes), headers=headers, timeout=30.0)
    assert answer.status_code == 200, answer.text
    return answer.headers["x-clawback-release"], answer.json()


async def test_the_chain_of_events_decides_what_serves(
    tiny: Path, adapters: list[Adapter], publisher: Publisher, env: dict[str, str], tmp_path: Path
) -> None:
    one = await publisher.release("anna", adapters[0])
    with policy(tiny, tmp_path / "log", env) as server:
        assert ask(server, "anna")[0] == one, "what was published before the start serves from the start"
        assert ask(server, "ben")[0] == "base"
        two = await publisher.release("anna", adapters[1])
        server.wait_serving("anna", two)
        release, body = ask(server, "anna")
        assert release == two == body["clawback"]["release_id"]
        assert off_by(tiny, body, Path(adapters[1].uri)) < CLOSE

        held = await publisher.release("anna", adapters[2], event="held", serving=two)
        back = PolicyRelease(
            event="rolled_back", release_id=one, parent_id=None, serving=one, scenario="anna", step=1, number=1,
            batch_id=None, trained=[], dropped={}, metrics={}, created_at=1.0,
        )  # fmt: skip
        await publisher.send(back)
        server.wait_serving("anna", one)
        assert off_by(tiny, ask(server, "anna")[1], Path(adapters[0].uri)) < CLOSE

        await publisher.release("anna", adapters[2], event="promoted", release_id=held, serving=held)
        server.wait_serving("anna", held)
        assert off_by(tiny, ask(server, "anna")[1], Path(adapters[2].uri)) < CLOSE


async def test_what_is_not_as_published_is_refused_and_the_former_serves_on(
    tiny: Path, adapters: list[Adapter], publisher: Publisher, env: dict[str, str], tmp_path: Path
) -> None:
    good = await publisher.release("anna", adapters[0])
    with policy(tiny, tmp_path / "log", env) as server:
        wrong = Adapter(kind="lora", uri=adapters[1].uri, digest=adapters[0].digest)
        bad = await publisher.release("anna", wrong)
        refused = "clawback_policy_releases_refused_total"
        assert wait_until(lambda: server.metric(refused, scenario="anna", reason="digest") >= 1, 30.0)
        assert ask(server, "anna")[0] == good
        assert server.metric("clawback_policy_behind", scenario="anna") == 1
        assert bad in (tmp_path / "log").read_text()
        await publisher.release("anna", Adapter(kind="lora", uri=str(tmp_path / "none"), digest="0"))
        assert wait_until(lambda: server.metric(refused, scenario="anna", reason="weights_missing") >= 1, 30.0)
        release, body = ask(server, "anna")
        assert release == good
        assert off_by(tiny, body, Path(adapters[0].uri)) < CLOSE
        last = await publisher.release("anna", adapters[2])
        server.wait_serving("anna", last)
        assert server.metric("clawback_policy_behind", scenario="anna") == 0


async def test_swaps_under_load_fail_no_request_and_mix_no_release(
    tiny: Path, adapters: list[Adapter], publisher: Publisher, env: dict[str, str], tmp_path: Path
) -> None:
    """Every answer, streamed or not, is checked against transformers under the one release that it is stamped with."""
    weights: dict[str, Path | None] = {"base": None}
    answers: list[tuple[str, dict[str, Any]]] = []
    enough = asyncio.Event()

    async def client(http: httpx.AsyncClient, number: int) -> None:
        scenario, turn = ("anna", "ben")[number % 2], 0
        headers = {"x-reef-scenario": scenario, "x-clawback-capture": "4"}
        while not enough.is_set():
            turn += 1
            body = question(f"Question {turn % 3}", stream=number % 3 == 0, max_tokens=24)
            answer = await http.post(CHAT, json=body, headers=headers)
            assert answer.status_code == 200, answer.text
            answers.append((answer.headers["x-clawback-release"], _captured(answer)))

    with policy(tiny, tmp_path / "log", env) as server:
        async with httpx.AsyncClient(base_url=server.url, timeout=60.0) as http, asyncio.TaskGroup() as group:
            clients = [group.create_task(client(http, i)) for i in range(6)]
            for step in range(8):
                for scenario in ("anna", "ben"):
                    adapter = adapters[(step + (scenario == "ben")) % len(adapters)]
                    release = await publisher.release(scenario, adapter)
                    weights[release] = Path(adapter.uri)
                    await _until_served(answers, release, clients)
            enough.set()
        assert server.metric("clawback_policy_requests_total", outcome="completed") == len(answers)
    stamps = {release for release, _ in answers}
    assert len(stamps) >= 16, "every release served somebody"
    for release, body in answers[:: max(1, len(answers) // 150)]:
        assert body["clawback"]["release_id"] == release
        assert off_by(tiny, body, weights[release]) < CLOSE


async def _until_served(answers: list[Any], release: str, clients: list[asyncio.Task[None]]) -> None:
    async with asyncio.timeout(60):
        while not any(stamp == release for stamp, _ in answers[-40:]):
            failed = [c for c in clients if c.done()]
            assert not failed, failed[0].exception()
            await asyncio.sleep(0.01)


def _captured(answer: httpx.Response) -> dict[str, Any]:
    if answer.headers["content-type"].startswith("application/json"):
        return dict(answer.json())
    lines = answer.text.strip().split("\n\n")
    assert lines[-1] == "data: [DONE]"
    return dict(json.loads(lines[-2].removeprefix("data: ")))


async def test_kill_9_around_reloads_and_the_next_start_serves_the_same_log_probs(
    tiny: Path, adapters: list[Adapter], publisher: Publisher, env: dict[str, str], tmp_path: Path
) -> None:
    """The kill comes at a different point of the reload each time: from right after publishing to after it serves."""
    server = Policy(tiny, tmp_path / "log", env)
    server.start()
    try:
        for attempt in range(4):
            adapter = adapters[attempt]
            release = await publisher.release("anna", adapter)
            if attempt % 2:
                server.wait_serving("anna", release)
            server.process.signal(signal.SIGKILL)
            assert wait_until(lambda: not server.process.alive(), 10.0)
            server.start()
            stamp, body = ask(server, "anna")
            assert stamp == release, "ready means that the log was read to its end"
            assert off_by(tiny, body, Path(adapter.uri)) < CLOSE
    finally:
        server.process.stop(20.0)


async def test_sigterm_lets_open_answers_finish(tiny: Path, env: dict[str, str], tmp_path: Path) -> None:
    with policy(tiny, tmp_path / "log", env) as server:
        body = question("Hi", stream=True, max_tokens=480, logit_bias={"256": -100})
        body["stream_options"] = {"include_usage": True}
        async with (
            httpx.AsyncClient(base_url=server.url, timeout=60.0) as http,
            http.stream("POST", CHAT, json=body) as answer,
        ):
            lines = answer.aiter_lines()
            await anext(lines)
            server.process.signal(signal.SIGTERM)
            rest = [line async for line in lines]
        assert rest[-2:] == ["data: [DONE]", ""]
        assert json.loads(rest[-4].removeprefix("data: "))["usage"]["completion_tokens"] == 480
        assert wait_until(lambda: not server.process.alive(), 20.0)
    assert '"event": "stopped"' in (tmp_path / "log").read_text()


def test_without_a_broker_it_says_that_it_is_not_ready(tiny: Path, env: dict[str, str], tmp_path: Path) -> None:
    """Serving the base to a scenario that has a release would be wrong, so nothing is served until the log is read."""
    nowhere = {**env, "CLAWBACK_KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:9"}
    server = Policy(tiny, tmp_path / "log", nowhere)
    server.start(wait=False)
    try:

        def answers() -> bool:
            try:
                return httpx.get(f"{server.url}/healthz").status_code == 200
            except httpx.TransportError:
                return False

        assert wait_until(answers, 60.0)
        ready = httpx.get(f"{server.url}/readyz")
        assert ready.status_code == 503
        assert "policy.releases" in ready.text
        refused = httpx.post(server.url + CHAT, json=question("Hi"))
        assert refused.status_code == 503
        assert "retry-after" in refused.headers
    finally:
        server.process.stop(20.0)
