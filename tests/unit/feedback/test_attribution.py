"""From ballots to feedback per turn: earlier turns get a judged turn of their own."""

from __future__ import annotations

import pytest

from libs.contracts import Message, TurnJudged, TurnMatched, decode, encode
from libs.feedback.attribution import attribute, feedback_id, implicit, unasked
from libs.feedback.dispatch import Weights, records
from libs.feedback.engine import Options, judge_turn
from libs.feedback.judge import Ballot, Judgement, Question
from libs.feedback.judges.rules import RulesJudge
from tests.unit.feedback.make import ballot, earlier, matched, question

WORDS = Message("user", "anything")
OLD = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
NOW = {"type": "text", "text": "now this"}


def judged(turn: TurnMatched, *ballots: Ballot, require_capture: bool = True) -> list[TurnJudged]:
    asked = Question.of(turn)
    found = attribute(turn, asked, ballots)
    return records(turn, found, RulesJudge(), judged_at=5.0, weights=Weights(), require_capture=require_capture)


def test_words_about_an_earlier_turn_become_a_judged_turn_of_its_own() -> None:
    turn = matched(WORDS, earlier=[earlier(1), earlier(2)])
    last, first = judged(turn, Ballot(judgements=(Judgement(1, -1, hint="Say so."),)))
    assert (last.turn_id, last.disposition, last.reason, last.verdict) == (
        "turn-last",
        "dropped",
        "about_earlier_turn",
        0,
    )
    assert (first.turn_id, first.target, first.verdict, first.hints) == ("turn-1", "earlier", -1, ["Say so."])
    assert (first.request, first.response, first.release_id) == (
        turn.earlier[0].request,
        turn.earlier[0].response,
        "release-1",
    )
    assert first.capture == turn.earlier[0].capture
    assert (first.received_at, first.completed_at, first.answered_at) == (10.0, 11.0, 110.0)
    assert first.disposition == "train"


def test_one_next_state_may_judge_two_turns() -> None:
    turn = matched(WORDS, earlier=[earlier(1)])
    both = Ballot(judgements=(Judgement(1, -1), Judgement(2, 1)))
    assert {(j.turn_id, j.verdict) for j in judged(turn, both)} == {("turn-last", 1), ("turn-1", -1)}


def test_each_feedback_has_its_own_id_and_a_redelivery_the_same() -> None:
    turn = matched(WORDS, earlier=[earlier(1)])
    both = Ballot(judgements=(Judgement(1, -1), Judgement(2, 1)))
    ids = [j.feedback_id for j in judged(turn, both)]
    assert len(set(ids)) == 2
    assert ids == [j.feedback_id for j in judged(decode(encode(turn), TurnMatched), both)]
    later = matched(WORDS, answered_by="answer-2", earlier=[earlier(1)])
    assert not set(ids) & {j.feedback_id for j in judged(later, both)}
    assert feedback_id("a", "bc", "last") != feedback_id("ab", "c", "last")


def test_an_uncaptured_earlier_turn_is_dropped_with_the_reason() -> None:
    turn = matched(WORDS, earlier=[earlier(1, capture=None)])
    one = Ballot(judgements=(Judgement(1, -1),))
    assert [(j.disposition, j.reason) for j in judged(turn, one)] == [
        ("dropped", "about_earlier_turn"),
        ("dropped", "not_captured"),
    ]
    assert judged(turn, one, require_capture=False)[1].disposition == "train"


@pytest.mark.parametrize(("evidence", "weight"), [("regeneration", 0.5), ("branch", 0.25)])
async def test_asking_again_rejects_without_asking_a_judge(evidence: str, weight: float) -> None:
    (record,) = await judge_turn(RulesJudge(), matched(evidence=evidence), Options(), now=lambda: 1.0)
    assert (record.verdict, record.evidence, record.weight, record.disposition) == (-1, evidence, weight, "train")
    assert record.hints == []


async def test_implicit_evidence_can_be_turned_off() -> None:
    options = Options(weights=Weights(regeneration=0.0))
    (record,) = await judge_turn(RulesJudge(), matched(evidence="regeneration"), options, now=lambda: 1.0)
    assert (record.disposition, record.reason) == ("dropped", "implicit_only")


@pytest.mark.parametrize("said", [(), (Message("user", "  "),), (Message("tool", ""),)])
async def test_silence_is_never_acceptance(said: tuple[Message, ...]) -> None:
    assert implicit(question(*said)) == Ballot()
    (record,) = await judge_turn(RulesJudge(), matched(*said), Options(), now=lambda: 1.0)
    assert (record.verdict, record.disposition, record.reason) == (0, "dropped", "no_signal")


def test_a_turn_that_nobody_was_asked_about_says_so() -> None:
    turn = matched(WORDS)
    (record,) = records(turn, [unasked(turn, "judge_budget")], RulesJudge(), judged_at=1.0, weights=Weights())
    assert (record.disposition, record.reason) == ("dropped", "judge_budget")
    assert [(v.verdict, v.reason) for v in record.votes] == [(None, "judge_budget")]


def test_the_window_keeps_the_newest_turns_and_their_numbers() -> None:
    turn = matched(WORDS, earlier=[earlier(n) for n in range(1, 11)])
    asked = Question.of(turn, window=3)
    assert [t.number for t in asked.earlier] == [8, 9, 10]
    assert asked.number == 11
    assert Question.of(turn, window=0).earlier == ()
    assert len(attribute(turn, asked, [ballot(-1, number=9)])) == 2


@pytest.mark.parametrize(
    "request_body",
    [
        {"messages": [{"role": "system", "content": "s"}, *OLD, {"role": "user", "content": [NOW]}]},
        {"input": [*OLD, {"role": "user", "content": [NOW | {"type": "input_text"}]}]},
        {"input": "now this"},
    ],
)
def test_the_prompt_is_read_from_the_request_when_the_record_does_not_say_it(request_body: object) -> None:
    turn = matched(WORDS, prompt=[], request=request_body)
    assert Question.of(turn).prompt == (Message("user", "now this"),)


@pytest.mark.parametrize("odd", [None, 3, {"messages": 4}, {"messages": [None, 7]}, {"input": {}}])
def test_an_odd_request_gives_no_prompt(odd: object) -> None:
    assert Question.of(matched(WORDS, prompt=[], request=odd)).prompt == ()
