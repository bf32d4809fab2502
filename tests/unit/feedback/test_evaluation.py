"""The evaluation set, what the rules judge must reach on it, and the offline commands."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from libs.contracts import Message, TurnJudged, decode, encode
from libs.errors import ContractError
from libs.feedback import evaluate
from libs.feedback.__main__ import main
from libs.feedback.evaluation import Judged, Row, judged, read_rows, report
from libs.feedback.judge import Ballot, Judgement
from tests.unit.feedback.make import abstention, earlier, matched

SET = Path(__file__).parents[2] / "data" / "feedback" / "next_states.jsonl"
SHARED = Path(__file__).parents[4] / "shared" / "feedback" / "real_next_states.jsonl"


def scores(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, Any]:
    capsys.readouterr()
    assert evaluate.main(["--judge", "rules", "--json", *argv]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_the_set_is_what_it_says() -> None:
    rows = read_rows(SET)
    assert len(rows) >= 300
    assert len({row.id for row in rows}) == len(rows)
    assert len({row.language for row in rows}) == 5
    assert {row.split for row in rows} == {
        "tune", "final", "fresh", "last", "turned", "turned_held", "turned_last", "turned_end",
    }  # fmt: skip
    kinds = Counter(row.kind for row in rows)
    assert set(kinds) == {
        "correction", "earlier", "partial", "redo", "rephrase", "sarcasm", "praise", "new_task", "question",
        "ambiguous", "clarification", "machine",
        "turned_agree", "turned_negpraise", "turned_idiom", "turned_blame", "turned_quoted", "turned_third",
        "turned_task", "turned_spoiled", "turned_overreach",
    }  # fmt: skip
    for row in rows:
        assert (row.target == "none") <= (row.verdict == 0 or row.kind in {"new_task", "machine"}), row.id
        assert (row.target == "earlier") == (row.target_turn is not None), row.id
        assert row.rejected or row.verdict >= 0, row.id


@pytest.mark.parametrize("split", ["turned", "turned_held", "turned_last", "turned_end"])
def test_words_turned_by_their_frame_get_no_wrong_sign(capsys: pytest.CaptureFixture[str], split: str) -> None:
    found = scores(capsys, "--split", split, str(SET))
    assert found["precision"] >= 0.94
    assert [w for w in found["wrong"] if w["label"] * w["got"] < 0] == []


@pytest.mark.parametrize("split", ["", "tune", "final", "fresh"])
def test_the_rules_judge_on_the_evaluation_set(capsys: pytest.CaptureFixture[str], split: str) -> None:
    found = scores(capsys, *(["--split", split] if split else []), str(SET))
    assert found["precision"] >= 0.95
    assert found["coverage"] >= 0.6
    assert found["coverage_all"] >= 0.5
    assert found["target_accuracy"] >= 0.9
    assert found["earlier_target_accuracy"] >= 0.9
    assert found["too_few_votes"] == 0


@pytest.mark.skipif(not SHARED.exists(), reason="the labelled real messages are not beside this checkout")
def test_the_rules_judge_on_real_messages(capsys: pytest.CaptureFixture[str]) -> None:
    found = scores(capsys, "--confidence", "high", str(SHARED))
    assert found["precision"] >= 0.9
    assert found["coverage"] >= 0.5
    assert found["coverage_all"] >= 0.5
    for row in read_rows(SHARED):
        if not row.human:
            from libs.feedback.judges.rules import RulesJudge

            assert all(j.verdict <= 0 for j in RulesJudge().judge(row.question())), f"{row.id}: machine text as praise"


def row(**fields: Any) -> Row:
    base: dict[str, Any] = {
        "id": "r", "context": [Message("user", "q")], "reply": "a", "next_state": [Message("user", "n")],
        "verdict": -1, "target": "last", "kind": "correction",
    }  # fmt: skip
    return Row(**base | fields)


def result(label: int, got: int, *, number: int = 1, **fields: Any) -> Judged:
    labelled = row(verdict=label, **fields)
    return judged(labelled, labelled.question(), [Ballot(judgements=(Judgement(number, got),))])  # type: ignore[arg-type]


def test_the_figures_of_a_small_example() -> None:
    found = report(
        [result(-1, -1), result(-1, 1), result(-1, 0), result(1, 1, kind="praise"), result(0, 0, kind="question"),
         result(0, -1, kind="question", target="none")]
    )  # fmt: skip
    assert found["precision"] == 0.5  # 2 of 4 judged
    assert found["coverage"] == 0.75  # 3 of 4 labelled
    assert found["coverage_all"] == round(4 / 6, 4)
    assert found["accuracy"] == 0.5
    assert found["per_kind"]["correction"]["confusion"] == {"-1->-1": 1, "-1->+0": 1, "-1->+1": 1}
    assert [w["label"] for w in found["wrong"]] == [-1, 0]


def test_targets_count_where_a_label_names_one() -> None:
    context = [Message("user", "q"), Message("assistant", "one"), Message("user", "q"), Message("assistant", "two")]
    named: dict[str, Any] = {"context": context, "target": "earlier"}
    found = report(
        [result(-1, -1, number=2, **named, target_turn=2), result(-1, -1, number=1, **named, target_turn=2),
         result(-1, -1, number=3, **named), result(-1, -1, number=1), result(-1, 0, **named)]
    )  # fmt: skip
    assert (found["target_accuracy"], found["target_rows"]) == (0.5, 4)
    assert (found["earlier_target_accuracy"], found["earlier_target_rows"]) == (round(1 / 3, 4), 3)


def test_an_empty_share_is_null_and_abstentions_are_counted() -> None:
    labelled = row(verdict=0, target="none")
    found = report([judged(labelled, labelled.question(), [abstention("timeout"), Ballot(), Ballot()])])
    assert (found["precision"], found["coverage"], found["target_accuracy"]) == (None, None, None)
    assert found["abstentions"] == {"timeout": 1}


def test_a_wrong_row_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(SET.read_text().splitlines()[0] + '\n{"id": "x", "verdict": 5}\n')
    with pytest.raises(ContractError, match=r"rows.jsonl:2: no labelled next state"):
        read_rows(path)
    assert evaluate.main([str(path)]) == 2
    assert "rows.jsonl:2" in capsys.readouterr().err


def test_judge_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, target, told = tmp_path / "matched.jsonl", tmp_path / "out" / "judged.jsonl", tmp_path / "report.json"
    turns = [
        matched(Message("user", "No, please stop using lists.")),
        matched(Message("user", "Thanks!"), turn_id="t2", capture=None),
        matched(Message("user", "Your first answer is wrong."), turn_id="t3", earlier=[earlier(1)]),
        matched(evidence="regeneration", turn_id="t4"),
    ]
    source.write_bytes(b"\n".join(encode(t) for t in turns) + b"\n")
    argv = ["--judge", "rules", "--input", str(source), "--output", str(target), "--report", str(told)]
    assert main(argv) == 0
    first = target.read_bytes()
    made = [decode(line, TurnJudged) for line in first.splitlines()]
    assert [(j.turn_id, j.verdict, j.reason) for j in made] == [
        ("turn-last", -1, "signal"), ("t2", 1, "not_captured"), ("t3", 0, "about_earlier_turn"),
        ("turn-1", -1, "signal"), ("t4", -1, "signal"),
    ]  # fmt: skip
    counts = json.loads(told.read_text())
    assert (counts["turns"], counts["records"], counts["verdicts"]) == (4, 5, {"+0": 1, "+1": 1, "-1": 3})
    assert main(["judge", *argv]) == 0
    assert target.read_bytes() == first, "the same input gives the same output"
    assert main([*argv, "--allow-uncaptured"]) == 0
    assert [decode(line, TurnJudged).reason for line in target.read_bytes().splitlines()][1] == "signal"


def test_judging_a_file_that_is_none_names_the_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "matched.jsonl"
    source.write_bytes(encode(matched(Message("user", "x"))) + b"\n{}\n")
    assert main(["--input", str(source), "--output", str(tmp_path / "o")]) == 1  # the rest is judged all the same
    assert "matched.jsonl:2: left out: not a valid TurnMatched record" in capsys.readouterr().err
    assert len((tmp_path / "o").read_bytes().splitlines()) == 1
    assert main(["--input", str(tmp_path / "none"), "--output", str(tmp_path / "o")]) == 2


def test_prm_needs_an_address(capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluate.main(["--judge", "prm", str(SET)]) == 2
    assert "--judge prm needs --url and --model" in capsys.readouterr().err


def test_no_rows_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluate.main(["--confidence", "none such", str(SET)]) == 2
    assert "no rows to score" in capsys.readouterr().err
