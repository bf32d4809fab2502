"""The dispatch table of the design, row by row, and the weights."""

from __future__ import annotations

import pytest

from libs.contracts import Message, TurnJudged
from libs.feedback.attribution import attribute
from libs.feedback.dispatch import Weights, records
from libs.feedback.judge import Ballot, Judgement, Question, Verdict
from libs.feedback.judges.rules import RulesJudge
from tests.unit.feedback.make import matched

TURN = matched(Message("user", "anything"))


def record(judgement: Judgement, weights: Weights | None = None) -> TurnJudged:
    found = attribute(TURN, Question.of(TURN), [Ballot(judgements=(judgement,))])
    return records(TURN, found, RulesJudge(), judged_at=1.0, weights=weights or Weights())[0]


@pytest.mark.parametrize(
    ("hint", "verdict", "reward", "hints", "disposition", "reason"),
    [
        ("Do so.", -1, -1.0, ["Do so."], "train", "signal"),
        ("Do so.", 1, 1.0, ["Do so."], "train", "signal"),
        ("Do so.", 0, 0.0, ["Do so."], "train", "signal"),
        ("", -1, -1.0, [], "train", "signal"),
        ("", 1, 1.0, [], "train", "signal"),
        ("", 0, 0.0, [], "dropped", "no_signal"),
    ],
)
def test_the_table(hint: str, verdict: Verdict, reward: float, hints: list[str], disposition: str, reason: str) -> None:
    made = record(Judgement(1, verdict, hint=hint))
    assert (made.reward, made.hints, made.disposition, made.reason) == (reward, hints, disposition, reason)


def test_the_record_carries_all_that_training_needs() -> None:
    made = record(Judgement(1, -1, rejected="lists", preserved="steps"))
    assert (made.request, made.response, made.capture, made.path) == (
        TURN.request,
        TURN.response,
        TURN.capture,
        TURN.path,
    )
    assert (made.judge, made.rejected, made.preserved, made.judged_at) == ("rules", "lists", "steps", 1.0)
    assert made.judge_version.startswith("rules-")


@pytest.mark.parametrize(
    ("kind", "verdict", "weight"),
    [
        ("correction", -1, 1.0),
        ("praise", 1, 1.0),
        ("moved_on", 1, 0.5),
        ("built_on", 1, 0.5),
        ("machine", 1, 0.1),
        ("machine", -1, 0.5),
    ],
)
def test_weight_by_evidence(kind: str, verdict: Verdict, weight: float) -> None:
    assert record(Judgement(1, verdict, kind=kind)).weight == weight


def test_evidence_without_weight_is_dropped_with_its_reason() -> None:
    made = record(Judgement(1, 1, kind="moved_on"), Weights(moved_on=0.0))
    assert (made.disposition, made.reason) == ("dropped", "implicit_only")
