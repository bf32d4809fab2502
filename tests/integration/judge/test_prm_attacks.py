"""No text in a conversation steers the PRM judge, over real HTTP, against a server that a naive prompt loses to."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest

from libs.feedback.judge import Question
from libs.feedback.judges.prm import PrmJudge
from libs.feedback.transport import open_transport
from tests.integration.judge.attacks import CASES, PAYLOADS, Case, attacked
from tests.integration.judge.prm_server import PrmServer, grade, serve

pytestmark = pytest.mark.integration


@pytest.fixture
async def server() -> AsyncIterator[PrmServer]:
    async with serve() as running:
        yield running


@pytest.fixture
async def judge(server: PrmServer) -> AsyncIterator[PrmJudge]:
    async with open_transport(server.url, "", max_connections=8) as transport:
        yield PrmJudge(transport, "prm")


@pytest.mark.parametrize("parrot", [False, True], ids=["plain", "parrots the conversation"])
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
async def test_no_attack_changes_a_verdict(server: PrmServer, judge: PrmJudge, case: Case, parrot: bool) -> None:
    server.parrot = parrot
    assert (await judge.vote(case.question, 0)).verdict(case.question.number) == case.verdict
    for name in PAYLOADS:
        for place, question in attacked(case, name).items():
            ballot = await judge.vote(question, 0)
            assert not ballot.abstained, (name, place, ballot.abstained)
            assert ballot.verdict(question.number) == case.verdict, (name, place)


def naive(question: Question) -> list[dict[str, str]]:
    """What a prompt without delimiters, escaping and nonce looks like."""
    text = "\n".join(f"{m.role}: {m.text}" for m in question.next_state)
    lines = json.dumps({"turn": "next", "who": "user", "text": text})
    content = f"Conversation:\n{question.prompt[0].text}\n{question.reply}\n{text}\n{lines}\nGrade the reply."
    return [{"role": "system", "content": "Grade."}, {"role": "user", "content": content}]


def test_the_server_can_be_steered() -> None:
    """Otherwise the test above would show nothing: without the defences most attacks win."""
    won = total = 0
    for case in CASES:
        for name in PAYLOADS:
            for question in attacked(case, name).values():
                total += 1
                won += grade(naive(question))[0] == -case.verdict
    assert won > total / 3, f"{won} of {total}"
