"""The judge service's handler: retries, dead letters, outages, budget; no broker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from libs.contracts import Message, TurnJudged, TurnMatched, decode, encode
from libs.errors import ContractError, DeadLetterError, RetryError
from libs.feedback.engine import Options
from libs.feedback.judge import Ballot, Judgement, Question
from libs.feedback.votes import TooFewVotes
from libs.streams.types import Done, StreamRecord
from libs.telemetry import metrics
from services.judge import handler as module
from services.judge.handler import JudgeHandler
from services.judge.health import EndpointHealth
from services.judge.state import TokenBudget
from tests.unit.feedback.make import abstention, earlier, matched

REJECTED = Ballot(judgements=(Judgement(1, -1, hint="Say so."),), tokens=40)
DOWN = abstention("connection", outage=True)


class Endpoint:
    """A judge whose answer can be changed while it runs."""

    name = "prm"
    version = "test"
    deterministic = False

    def __init__(self, answer: Callable[[Question], Ballot]) -> None:
        self.answer = answer
        self.calls = 0
        self.gate: asyncio.Event | None = None

    async def vote(self, question: Question, index: int) -> Ballot:
        self.calls += 1
        if self.gate is not None:
            await self.gate.wait()
        return self.answer(question)


def record(turn: TurnMatched, offset: int = 0) -> StreamRecord:
    return StreamRecord("turns.matched", 0, offset, b"k", encode(turn))


def judged(done: Done) -> list[TurnJudged]:
    assert all(o.topic == "turns.judged" for o in done.outputs)
    return [decode(o.value, TurnJudged) for o in done.outputs]


TURN = matched(Message("user", "no, not like this"))


async def test_a_record_in_a_judged_turn_out_keyed_by_scenario() -> None:
    hints = metrics.JUDGE_HINTS.labels("s")._value.get()
    done = await JudgeHandler(Endpoint(lambda q: REJECTED), Options(), now=lambda: 7.0).handle(record(TURN))
    assert [o.key for o in done.outputs] == ["s"]
    (made,) = judged(done)
    assert (made.turn_id, made.verdict, made.hints, made.judged_at) == ("turn-last", -1, ["Say so."], 7.0)
    assert len(made.votes) == 2
    assert metrics.JUDGE_HINTS.labels("s")._value.get() == hints + 1


async def test_a_record_that_is_none_is_a_dead_letter() -> None:
    with pytest.raises(ContractError):
        await JudgeHandler(Endpoint(lambda q: REJECTED), Options()).handle(StreamRecord("t", 0, 0, None, b"{}"))


async def test_a_redelivery_gives_the_same_ids() -> None:
    turn = matched(Message("user", "no"), earlier=[earlier(1)])
    both = Ballot(judgements=(Judgement(1, -1), Judgement(2, 1)))
    first, second = [
        judged(await JudgeHandler(Endpoint(lambda q: both), Options()).handle(record(turn))) for _ in range(2)
    ]
    assert [j.feedback_id for j in first] == [j.feedback_id for j in second]
    assert len(first) == 2


async def test_a_turn_without_valid_votes_is_retried_and_then_given_up() -> None:
    handler = JudgeHandler(Endpoint(lambda q: abstention("unparsable")), Options(), max_attempts=3)
    for _ in range(2):
        with pytest.raises(TooFewVotes):
            await handler.handle(record(TURN))
    with pytest.raises(DeadLetterError, match="unparsable x2") as caught:
        await handler.handle(record(TURN))
    assert caught.value.reason == "too_few_votes"
    with pytest.raises(TooFewVotes):  # a turn given up and sent again starts anew
        await handler.handle(record(TURN))


async def test_an_outage_never_gives_a_turn_up_and_says_nothing_neutral(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ENDPOINT_WAIT_SECONDS", 0.0)
    endpoint = Endpoint(lambda q: DOWN)
    handler = JudgeHandler(endpoint, Options(), max_attempts=2)
    for offset in range(60):
        with pytest.raises(RetryError) as caught:
            await handler.handle(record(TURN, offset % 3))
        assert not isinstance(caught.value, DeadLetterError)
    with pytest.raises(RetryError, match="away: connection"):
        await handler.ready()
    assert metrics.JUDGE_UP._value.get() == 0
    assert endpoint.calls < 20  # while it is down only probes get through
    endpoint.answer = lambda q: REJECTED
    handler._health._next_probe = 0.0
    assert judged(await handler.handle(record(TURN)))[0].verdict == -1
    await handler.ready()
    assert metrics.JUDGE_UP._value.get() == 1


async def test_waiting_turns_go_on_at_once_when_the_endpoint_is_back() -> None:
    endpoint = Endpoint(lambda q: DOWN)
    handler = JudgeHandler(endpoint, Options())
    with pytest.raises(RetryError):
        for _ in range(10):
            await handler.handle(record(TURN))
    while not handler._health.down:
        with pytest.raises(RetryError):
            await handler.handle(record(TURN))
    handler._health._next_probe = float("inf")
    waiting = asyncio.create_task(handler.handle(record(TURN, 5)))
    await asyncio.sleep(0)
    endpoint.answer = lambda q: REJECTED
    handler._health._next_probe = 0.0
    await handler.handle(record(TURN, 6))  # the probe
    assert judged(await waiting)[0].verdict == -1


async def test_a_turn_that_fails_while_others_pass_is_given_up_in_the_end() -> None:
    poison = matched(Message("user", "poison"))
    answer = {"poison": abstention("timeout", outage=True)}
    endpoint = Endpoint(lambda q: answer.get(q.next_state[-1].text, REJECTED))
    handler = JudgeHandler(endpoint, Options(), max_attempts=1)
    tries = 0
    with pytest.raises(DeadLetterError):
        while tries < 50:
            try:
                await handler.handle(record(poison, 1))
            except TooFewVotes:
                tries += 1
                await handler.handle(record(TURN, 2))
    assert tries == 4  # the first, and three of the quarter tries that follow


async def test_over_budget_is_dropped_with_its_reason_and_asks_nobody() -> None:
    endpoint = Endpoint(lambda q: REJECTED)
    budget = TokenBudget(None, 100, 60.0, lambda: 0.0)
    handler = JudgeHandler(endpoint, Options(), budget=budget)
    seen = [judged(await handler.handle(record(TURN, n)))[0] for n in range(3)]
    assert [j.reason for j in seen] == ["signal", "signal", "judge_budget"]
    assert [(j.verdict, j.disposition, j.votes[0].verdict) for j in seen[2:]] == [(0, "dropped", None)]
    assert endpoint.calls == 4
    other = matched(Message("user", "no"), scenario="other")
    assert judged(await handler.handle(record(other)))[0].reason == "signal"


async def test_the_budget_starts_anew_with_each_window() -> None:
    now = 0.0
    budget = TokenBudget(None, 10, 60.0, lambda: now)
    await budget.charge("s", 10)
    assert not await budget.left("s")
    now = 61.0
    assert await budget.left("s")


async def test_implicit_evidence_needs_no_endpoint() -> None:
    endpoint = Endpoint(lambda q: DOWN)
    handler = JudgeHandler(endpoint, Options())
    assert judged(await handler.handle(record(matched(evidence="regeneration"))))[0].verdict == -1
    assert endpoint.calls == 0


async def test_no_scenario_waits_for_all_turns_of_another() -> None:
    endpoint = Endpoint(lambda q: REJECTED)
    endpoint.gate = asyncio.Event()
    handler = JudgeHandler(endpoint, Options(), concurrency=2)
    finished: list[str] = []

    async def one(scenario: str, offset: int) -> None:
        await handler.handle(record(matched(Message("user", "no"), scenario=scenario), offset))
        finished.append(scenario)

    tasks = [asyncio.create_task(one("loud", n)) for n in range(20)]
    await asyncio.sleep(0)
    tasks.append(asyncio.create_task(one("quiet", 99)))
    await asyncio.sleep(0)
    endpoint.gate.set()
    await asyncio.gather(*tasks)
    assert finished.index("quiet") <= 4, finished


async def test_waiting_for_a_slot_is_no_fault_of_the_turn() -> None:
    endpoint = Endpoint(lambda q: REJECTED)
    endpoint.gate = asyncio.Event()
    handler = JudgeHandler(endpoint, Options(), concurrency=1, slot_wait_seconds=0.02, max_attempts=1)
    first = asyncio.create_task(handler.handle(record(TURN, 1)))
    await asyncio.sleep(0)
    for _ in range(3):
        with pytest.raises(RetryError) as caught:
            await handler.handle(record(TURN, 2))
        assert caught.value.reason == "judge_busy"
    endpoint.gate.set()
    await first
    assert judged(await handler.handle(record(TURN, 2)))[0].verdict == -1


def test_health_probes_with_growing_gaps() -> None:
    health = EndpointHealth(failures_to_down=2, first_probe_seconds=1.0, last_probe_seconds=4.0)
    assert not health.failed("timeout", 0.0)
    assert health.may_ask(0.0)
    assert health.failed("timeout", 0.0)
    assert health.down
    assert not health.may_ask(0.5)
    assert health.may_ask(1.0)
    assert not health.may_ask(1.0), "one probe at a time"
    assert not health.failed("timeout", 1.0), "the outage has begun already"
    assert not health.may_ask(2.5)
    assert health.may_ask(3.0)
    assert health.answered()
    assert not health.answered()
    assert health.may_ask(3.0)
