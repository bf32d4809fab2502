"""The summary agrees with a count over the records and says plainly when nothing was learned."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from msgspec import structs

from experiments.homework import report
from experiments.homework.sessions import SessionResult, Shape
from experiments.homework.watch import MAX_STALENESS, Facts
from libs.contracts import ExchangeClassified, PolicyRelease, TrainingBatch, TurnMatched, decode, encode
from tests.judged import EXAMPLES, judged

SCENARIO = "s"


def result(number: int, passed: bool, release: str = "base", answers: int = 1) -> SessionResult:
    return SessionResult(
        number=number, question=f"q{number}", first_reply="r", passed=passed, release_id=release, answers_sent=answers
    )


def classified(exchange_id: str, turn_id: str | None, at: float, reason: str = "matched") -> bytes:
    return encode(
        ExchangeClassified(
            exchange_id=exchange_id, scenario=SCENARIO, tenant="t", exchange_class="main", session_id="one",
            turn_id=turn_id, rule="tag" if turn_id else None, reason=reason, dialect="chat_completions", at=at,
        )
    )  # fmt: skip


def release(batch_id: str, trained: list[str], step: int, event: Any = "released", loss: float = 0.5) -> bytes:
    return encode(
        PolicyRelease(
            event=event, release_id=f"{SCENARIO}@{step:05d}-{batch_id}", parent_id=None,
            serving=f"{SCENARIO}@{step:05d}-{batch_id}", scenario=SCENARIO, step=step, number=step, batch_id=batch_id,
            trained=trained, dropped={}, metrics={"loss": loss}, created_at=100.0 + step,
        )
    )  # fmt: skip


def matched(turn_id: str, answered_by: str, scenario: str = SCENARIO) -> bytes:
    return encode(
        TurnMatched(
            turn_id=turn_id, answered_by=answered_by, scenario=scenario, tenant="t", session_id="one", rule="tag",
            confidence=1.0, path="/v1/chat/completions", reply="r", next_state=[], request={}, response={},
            release_id="base", received_at=1.0, completed_at=2.0, answered_at=3.0, earlier=[],
        )
    )  # fmt: skip


def summary(facts: Facts, sessions: list[SessionResult], base: float, final: float) -> dict[str, Any]:
    def rated(rate: float) -> list[SessionResult]:
        return [result(i, i < rate * 10) for i in range(10)]

    return report.summarize(
        seed=3, shape=Shape(), ttl_seconds=60.0, sessions=sessions,
        base={"heldout": rated(base), "stream": rated(base)}, final={"heldout": rated(final), "stream": rated(final)},
        facts=facts, wall_seconds=1.0, finished=True,
    )  # fmt: skip


def test_three_in_a_row_names_the_third_in_order_of_sessions() -> None:
    assert report.three_in_a_row([result(n, n in {2, 4, 5, 6}) for n in (6, 1, 3, 5, 2, 4)]) == 6
    assert report.three_in_a_row([result(n, n % 2 == 0) for n in range(12)]) is None


def test_facts_follow_a_turn_to_its_step_and_ignore_repeats_and_others() -> None:
    facts = Facts(SCENARIO)
    for _ in range(2):
        facts.add("exchanges.classified", classified("e1", None, 1.0, "first_request"))
        facts.add("exchanges.classified", classified("e2", "e1", 2.0))
        facts.add("turns.matched", matched("e1", "e2"))
        facts.add("turns.matched", matched("x1", "x2", scenario="other"))
    assert (len(facts.classified), facts.unjudged, facts.open_batches) == (2, 1, 0)
    facts.add("training.batches", encode(TrainingBatch(batch_id="b", scenario=SCENARIO, samples=[], created_at=4.0)))
    assert facts.open_batches == 1
    facts.add("policy.releases", release("b", ["f1", "f2"], 1))
    facts.add("policy.releases", release("b", ["f1", "f2"], 1))
    assert (facts.open_batches, facts.trained, len(facts.steps)) == (0, 2, 1)
    facts.add("turns.matched", b"not json")
    assert facts.unreadable == 1


def test_rates_in_the_summary_are_the_ledgers() -> None:
    facts = Facts(SCENARIO)
    facts.add("exchanges.classified", classified("e1", None, 1.0, "first_request"))
    facts.add("exchanges.classified", classified("e2", "e1", 2.0))
    facts.add("exchanges.classified", classified("e3", None, 3.0, "ambiguous"))
    made = summary(facts, [result(1, True)], 0.2, 0.9)
    assert made["match_rate"] == 0.5  # e1 was answered; e2 had a successor that did not bind
    assert made["unmatched_reasons"] == {"ambiguous": 1}
    assert made["exchange_reasons"] == {"first_request": 1, "matched": 1, "ambiguous": 1}


def test_steps_before_the_streak_are_those_of_the_release_that_served_it() -> None:
    facts = Facts(SCENARIO)
    facts.add("policy.releases", release("b1", [], 1))
    facts.add("policy.releases", release("b2", [], 2, event="held"))
    sessions = [result(n, True, release=f"{SCENARIO}@00001-b1") for n in (1, 2, 3)]
    made = summary(facts, sessions, 0.2, 0.9)
    assert (made["first_three_in_a_row_session"], made["steps_before_three_in_a_row"]) == (3, 1)
    assert made["optimizer_steps"] == 2


def test_a_run_that_did_not_adapt_says_so_with_the_cause(tmp_path: Path) -> None:
    made = summary(Facts(SCENARIO), [result(n, False, answers=2) for n in range(1, 5)], 0.2, 0.3)
    assert made["adapted"] is False
    said = report.verdict(made)
    assert "did NOT adapt" in said and "0 of 8 answers were bound" in said
    report.write(tmp_path, made, [result(1, False)], {"base": {}, "final": {}})
    assert json.loads((tmp_path / "summary.json").read_text())["seed"] == 3
    assert said in (tmp_path / "table.md").read_text()
    assert (tmp_path / "learning_curve.png").stat().st_size > 5_000
    assert len((tmp_path / "replies.jsonl").read_text().splitlines()) == 1


def test_a_run_that_adapted_says_so() -> None:
    made = summary(Facts(SCENARIO), [result(1, True)], 0.2, 0.9)
    assert made["adapted"] is True and "The policy adapted" in report.verdict(made)


def test_an_interrupted_run_claims_nothing() -> None:
    made = report.summarize(
        seed=0, shape=Shape(), ttl_seconds=60.0, sessions=[], base={}, final={}, facts=Facts(SCENARIO),
        wall_seconds=1.0, finished=False,
    )  # fmt: skip
    assert made["adapted"] is None and made["match_rate"] is None
    assert "stopped" in report.verdict(made)


def test_feedback_too_old_for_any_batch_is_told_and_not_waited_for() -> None:
    facts = Facts("homework")
    facts.add("turns.judged", encode(judged("f1", release_id="base")))
    assert (facts.waiting, facts.stale) == (1, 0)
    made = decode((EXAMPLES / "policy.releases/v1/released.json").read_bytes(), PolicyRelease)
    for n in range(1, MAX_STALENESS + 2):
        own, parent = (f"homework@{i:05d}-0badc0de" if i else "base" for i in (n, n - 1))
        event = structs.replace(made, release_id=own, serving=own, parent_id=parent, number=n, batch_id=f"b{n}")
        facts.add("policy.releases", encode(event))
    assert (facts.waiting, facts.stale) == (0, 1)
    assert summary(facts, [result(1, True)], 0.2, 0.9)["turns_too_old_to_train"] == 1
