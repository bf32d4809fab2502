"""The PRM client over real HTTP: what servers answer and how they fail."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from libs.contracts import Message
from libs.feedback.judge import Question
from libs.feedback.judges.prm import PrmJudge, Sampling
from libs.feedback.prompts import PROMPT_VERSION
from libs.feedback.transport import open_transport
from libs.feedback.votes import Rules, TooFewVotes, collect
from tests.integration.judge.prm_server import PrmServer, answer_text, completion, serve

pytestmark = pytest.mark.integration

REJECTED = Question((Message("user", "How?"),), "1. So\n2. So", (Message("user", "No, please stop using lists."),))


@pytest.fixture
async def server() -> AsyncIterator[PrmServer]:
    async with serve() as running:
        yield running


@pytest.fixture
async def judge(server: PrmServer) -> AsyncIterator[PrmJudge]:
    async with open_transport(server.url, "a-key", max_connections=8) as transport:
        yield PrmJudge(transport, "prm", call_timeout_seconds=5.0)


async def test_a_vote_with_its_hint_and_tokens(server: PrmServer, judge: PrmJudge) -> None:
    ballot = await judge.vote(REJECTED, 2)
    assert ballot.judgements[0].verdict == -1
    assert ballot.judgements[0].hint == "Write one paragraph of plain text."
    assert ballot.tokens == 100
    sent = server.requests[0]
    assert sent["seed"] == 2
    assert sent["response_format"]["json_schema"]["schema"]["required"] == ["id", "judgements"]
    assert judge.version.startswith(PROMPT_VERSION)


@pytest.mark.parametrize(
    ("response", "reason"),
    [
        (completion(None, tool_calls=[{"id": "1", "function": {"name": "f", "arguments": "{}"}}]), "tool_calls"),
        (completion(""), "empty"),
        (completion(None), "empty"),
        (completion(None, refusal="I cannot help with that."), "refused"),
        (completion("", finish="content_filter"), "refused"),
        (completion("I'm sorry, but I can't grade this."), "refused"),
        (completion("The verdict is -1."), "unparsable"),
        (completion('{"id": "", "judgements": [{"turn": 1, "verdict": 1}]}'), "unparsable"),
        (completion("<think>so the person says", finish="length"), "truncated"),
        (completion('{"id": "abc", "judgements": [{"tu', finish="length"), "truncated"),
        ({"choices": []}, "unparsable"),
        ({"error": {"message": "odd"}}, "unparsable"),
    ],
)
async def test_what_is_no_answer_is_an_abstention(
    server: PrmServer, judge: PrmJudge, response: dict[str, Any], reason: str
) -> None:
    server.fault = lambda number: web.json_response(response)
    ballot = await judge.vote(REJECTED, 0)
    assert (ballot.abstained, ballot.outage, ballot.judgements) == (reason, False, ())


@pytest.mark.parametrize(
    ("status", "outage"), [(500, True), (503, True), (429, True), (401, True), (404, True), (413, False)]
)
async def test_an_http_status_is_an_abstention(server: PrmServer, judge: PrmJudge, status: int, outage: bool) -> None:
    server.fault = lambda number: web.json_response({"error": "no"}, status=status)
    ballot = await judge.vote(REJECTED, 0)
    assert (ballot.abstained, ballot.outage) == (f"http_{status}", outage)


async def test_a_server_that_does_not_answer_is_a_timeout(server: PrmServer, judge: PrmJudge) -> None:
    judge.call_timeout_seconds = 0.05
    server.fault = lambda number: "hang"
    ballot = await judge.vote(REJECTED, 0)
    assert (ballot.abstained, ballot.outage) == ("timeout", True)


async def test_calls_under_way_together_all_learn_what_the_server_refuses(server: PrmServer, judge: PrmJudge) -> None:
    def fault(number: int) -> web.Response | None:
        refused = "response_format" in server.requests[-1]
        return web.json_response({"error": "no response_format here"}, status=400) if refused else None

    server.fault = fault
    ballots = await asyncio.gather(*(judge.vote(REJECTED, n) for n in range(4)))
    assert [b.abstained for b in ballots] == [""] * 4


async def test_an_answer_without_end_is_given_up_at_a_bound() -> None:
    sent = 0

    async def endless(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b" " * 65_536)
            sent += 65_536

    app = web.Application()
    app.router.add_post("/v1/chat/completions", endless)
    async with TestServer(app) as server, open_transport(str(server.make_url("/v1")), "", max_connections=1) as one:
        ballot = await PrmJudge(one, "prm", call_timeout_seconds=60.0).vote(REJECTED, 0)
    assert (ballot.abstained, sent < 64 * 2**20) == ("too_large", True)


async def test_a_server_that_is_not_there() -> None:
    async with serve() as gone:
        url = gone.url
    async with open_transport(url, "", max_connections=1) as transport:
        ballot = await PrmJudge(transport, "prm").vote(REJECTED, 0)
    assert (ballot.abstained, ballot.outage) == ("connection", True)


@pytest.mark.parametrize("refused", ["response_format", "seed", "temperature", "top_p", "max_tokens"])
async def test_a_parameter_that_the_server_refuses_is_left_out_from_then_on(
    server: PrmServer, judge: PrmJudge, refused: str
) -> None:
    def fault(number: int) -> web.Response | None:
        if refused in server.requests[-1]:
            return web.json_response({"error": {"message": f"Unsupported parameter: {refused}"}}, status=400)
        return None

    server.fault = fault
    for _ in range(2):
        assert (await judge.vote(REJECTED, 0)).judgements[0].verdict == -1
    assert server.calls == 3  # one refusal, learned once
    assert refused not in server.requests[-1]
    if refused == "max_tokens":
        assert server.requests[-1]["max_completion_tokens"] == Sampling().max_tokens


async def test_structured_on_does_not_fall_back(server: PrmServer, judge: PrmJudge) -> None:
    judge.structured = "on"
    server.fault = lambda number: web.json_response({"error": "response_format is not supported"}, status=400)
    assert (await judge.vote(REJECTED, 0)).abstained == "http_400"
    assert server.calls == 1


async def test_reasoning_is_passed_over_even_if_it_holds_another_answer(server: PrmServer, judge: PrmJudge) -> None:
    def fault(number: int) -> web.Response:
        said = answer_text(server.requests[-1]["messages"], parrot=False)
        other = json.dumps(json.loads(said) | {"judgements": [{"turn": 1, "verdict": 1}]})
        return web.json_response(completion(f"<think>Maybe {other}? No.</think>\n```json\n{said}\n```"))

    server.fault = fault
    assert (await judge.vote(REJECTED, 0)).judgements[0].verdict == -1


async def test_reasoning_without_its_opening_mark(server: PrmServer, judge: PrmJudge) -> None:
    server.fault = lambda number: web.json_response(
        completion(f"let me see</think>{answer_text(server.requests[-1]['messages'], parrot=False)}")
    )
    assert (await judge.vote(REJECTED, 0)).judgements[0].verdict == -1


async def test_votes_differ_in_seed_and_stop_when_settled(server: PrmServer, judge: PrmJudge) -> None:
    ballots = await collect(judge, REJECTED, Rules(votes=5), seen=lambda ballot: None)
    assert len(ballots) == server.calls == 3
    assert sorted(request["seed"] for request in server.requests) == [0, 1, 2]


async def test_failed_votes_are_asked_again_within_m(server: PrmServer, judge: PrmJudge) -> None:
    server.fault = lambda number: web.json_response({}, status=503) if number == 0 else None
    ballots = await collect(judge, REJECTED, Rules(votes=3), seen=lambda ballot: None)
    assert [bool(b.abstained) for b in ballots].count(True) == 1
    assert len(ballots) == 3


async def test_a_turn_times_out_as_a_whole(server: PrmServer, judge: PrmJudge) -> None:
    server.fault = lambda number: "hang"
    with pytest.raises(TooFewVotes) as caught:
        await collect(judge, REJECTED, Rules(votes=3, turn_timeout_seconds=0.1), seen=lambda ballot: None)
    assert caught.value.outage
    assert set(caught.value.abstentions) == {"turn_timeout"}
