"""The judge service as a process: verdicts, an endpoint that is away, kills, poison. Real broker, Redis and HTTP."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path

import pytest
from aiohttp import web

from deploy.local.process import free_port
from libs.contracts import DeadLetter, TurnJudged, TurnMatched, decode, encode
from libs.streams.config import ServiceSettings
from libs.streams.types import Output
from tests.eventually import eventually
from tests.integration.judge.prm_server import PrmServer, serve
from tests.integration.judge.service import JudgeProcess, environment, judges, prm_environment, start, turn
from tests.integration.streams.worlds import KafkaWorld

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

Start = Callable[..., JudgeProcess]


@pytest.fixture
async def world(kafka_settings: ServiceSettings, unique: str) -> KafkaWorld:
    return await KafkaWorld(kafka_settings, unique).open()


@pytest.fixture
def run(tmp_path: Path, kafka_env: dict[str, str], redis_url: str, unique: str) -> Iterator[Start]:
    env = environment(kafka_env, redis_url, unique)
    with judges(tmp_path, env) as running:
        yield lambda **more: start(tmp_path, env | more, running)


@pytest.fixture
async def prm() -> AsyncIterator[PrmServer]:
    async with serve() as server:
        yield server


async def send(world: KafkaWorld, turns: Sequence[TurnMatched]) -> None:
    producer = world.producer()
    left = await producer.send_all([Output(world.source, t.session_id, encode(t)) for t in turns])
    assert not left
    await producer.stop()


async def judged(world: KafkaWorld) -> list[TurnJudged]:
    return [decode(r.value, TurnJudged) for r in await world.records(world.target)]


async def dead(world: KafkaWorld) -> list[DeadLetter]:
    return [decode(r.value, DeadLetter) for r in await world.records(world.dead)]


async def until(world: KafkaWorld, turns: int, within_seconds: float = 90) -> list[TurnJudged]:
    found: list[TurnJudged] = []

    async def all_there() -> bool:
        nonlocal found
        found = await judged(world)
        return len({j.turn_id for j in found}) >= turns

    await eventually(all_there, within_seconds=within_seconds, why=f"{turns} judged, {len(found)} so far")
    return found


async def test_rules_from_topic_to_topic(world: KafkaWorld, run: Start) -> None:
    judge = run(CLAWBACK_JUDGE_KIND="rules")
    await judge.ready()
    await send(world, [turn(1), turn(2, "Thanks, that helps a lot!"), turn(3, "how long does it keep?")])
    found = {j.turn_id: j for j in await until(world, 3)}
    assert [found[f"turn-{n}"].verdict for n in (1, 2, 3)] == [-1, 1, 0]
    assert found["turn-1"].hints == ["Write the answer as plain paragraphs of text, without any lists."]
    assert (found["turn-3"].disposition, found["turn-3"].reason) == ("dropped", "no_signal")
    assert judge.metric("clawback_judged_turns_total") == 3
    assert await asyncio.to_thread(judge.process.stop, 20.0), "it ends by itself on SIGTERM"


async def test_while_the_prm_is_away_nothing_is_lost_and_nothing_is_neutral(world: KafkaWorld, run: Start) -> None:
    port = free_port()
    judge = run(**prm_environment(f"http://127.0.0.1:{port}/v1"))
    await judge.ready()
    turns = [turn(n, scenario=f"s{n % 3}") for n in range(300)]
    await send(world, turns[:150])

    async def seen_to_be_down() -> bool:
        return not await judge.is_ready() and judge.metric("clawback_judge_up") == 0

    await eventually(seen_to_be_down, why="the outage shows on /readyz and in the metrics")
    assert b"the judge endpoint is away" in judge.process.log.read_bytes()
    await send(world, turns[150:])
    await eventually(lambda: judge.metric("clawback_retries_total") > 50, why="turns wait and are tried again")
    assert await judged(world) == []
    async with serve(port):
        found = await until(world, len(turns))
        await eventually(judge.is_ready, why="ready again")
    assert {j.turn_id for j in found} == {t.turn_id for t in turns}
    assert {(j.verdict, j.disposition) for j in found} == {(-1, "train")}
    assert await dead(world) == []


async def test_an_endpoint_that_goes_and_comes_and_errs(world: KafkaWorld, run: Start, prm: PrmServer) -> None:
    prm.fault = lambda number: web.json_response({}, status=503) if number % 5 < 2 else None
    judge = run(**prm_environment(prm.url))
    await judge.ready()
    turns = [turn(n) for n in range(200)]
    await send(world, turns)
    found = await until(world, len(turns))
    assert {j.verdict for j in found} == {-1}
    assert any(v.verdict is None and v.reason == "http_503" for j in found for v in j.votes)
    assert judge.metric("clawback_judge_abstentions_total") > 0


async def test_kill_9_and_redelivery_cost_no_second_call(world: KafkaWorld, run: Start, prm: PrmServer) -> None:
    turns = [turn(n) for n in range(400)]
    first = run(**prm_environment(prm.url))
    await first.ready()
    await send(world, turns)
    await until(world, 100)
    first.process.signal(signal.SIGKILL)
    asked = prm.calls
    await eventually(lambda: not first.process.alive(), why="killed")
    run(**prm_environment(prm.url))
    found = await until(world, len(turns))
    assert {j.turn_id for j in found} == {t.turn_id for t in turns}
    assert len({j.feedback_id for j in found}) == len(turns), "a redelivered turn keeps its feedback id"
    # Two votes settle a turn; only what was at the endpoint when it was killed is asked again.
    assert prm.calls <= 2 * len(turns) + 2 * 32, (asked, prm.calls)


async def test_a_turn_that_the_prm_cannot_grade_is_a_dead_letter(world: KafkaWorld, run: Start, prm: PrmServer) -> None:
    def fault(number: int) -> web.Response | None:
        poison = "poison" in str(prm.requests[-1]["messages"])
        return web.json_response({"choices": [{"message": {"content": "no idea"}}]}) if poison else None

    prm.fault = fault
    run(**prm_environment(prm.url), CLAWBACK_JUDGE_MAX_ATTEMPTS="2")
    await send(world, [turn(1), turn(2, "poison"), turn(3)])
    found = await until(world, 2)
    assert {j.turn_id for j in found} == {"turn-1", "turn-3"}

    async def buried() -> list[DeadLetter]:
        return await dead(world)

    (letter,) = await eventually(buried, why="a dead letter")
    assert letter.reason == "too_few_votes"
    assert "unparsable x2" in letter.error
