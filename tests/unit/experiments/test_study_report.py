"""The report says what was run, and claims nothing that the intervals do not carry."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiments.homework import study, study_report


def leave_run(
    root: Path, arm: str, seed: int, *, base: float, final: float, finished: bool = True, late: bool = True
) -> None:
    directory = root / arm / f"seed-{seed}"
    directory.mkdir(parents=True)
    summary = {
        "finished": finished, "base_heldout_pass_rate": base, "final_heldout_pass_rate": final,
        "base_stream_pass_rate": base, "final_stream_pass_rate": final,
        "first_three_in_a_row_session": None if late else 9, "optimizer_steps": 4, "turns_trained": 16,
        "releases": {"released": 3, "held: gate_endless: 4 of 6": 1, "held: gate_drift: x": 1}, "seed": seed,
        "prompt_tokens": 1000, "completion_tokens": 500, "wall_seconds": 60.0,
        "drift": {
            "likeness": 0.5, "degenerate_before": 0.0, "degenerate_after": 0.1, "words_before": 50.0,
            "words_after": 40.0,
        },
    }  # fmt: skip
    (directory / "summary.json").write_text(json.dumps(summary))
    lines = [{"when": "live", "number": n, "passed": n > 6} for n in range(1, 13)]
    (directory / "replies.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_non_overlapping_intervals_are_said_to_show_learning(tmp_path: Path) -> None:
    for seed in range(5):
        leave_run(tmp_path, "combined", seed, base=0.2, final=0.88 + seed / 100, late=False)
        leave_run(tmp_path, "control", seed, base=0.2, final=0.18 + seed / 100)
    page = study_report.text(study_report.load(tmp_path))
    assert "the intervals do not overlap; it learns" in page
    assert "| combined | 0.20 [0.20, 0.20] | 0.90 [0.88, 0.92]" in page
    assert "control: 5 of 5 seeds never had three in a row" in page
    assert "**Not run:** rl, opd, memory, brief, brief-control." in page
    assert "| combined | 0.00 [0.00, 0.00] | 1.00 [1.00, 1.00] |" in page  # sessions 1-6, 7-12


def test_overlapping_intervals_are_said_not_to(tmp_path: Path) -> None:
    for seed, final in enumerate((0.2, 0.9, 0.4)):
        leave_run(tmp_path, "combined", seed, base=0.2, final=final)
        leave_run(tmp_path, "control", seed, base=0.2, final=final - 0.1)
    page = study_report.text(study_report.load(tmp_path))
    assert "do NOT show that it learns" in page
    assert "**Fewer than five seeds:** combined (3), control (3)." in page


def test_without_a_control_the_question_stays_open(tmp_path: Path) -> None:
    leave_run(tmp_path, "combined", 0, base=0.2, final=1.0)
    assert "Not answered" in study_report.text(study_report.load(tmp_path))


def test_unfinished_runs_do_not_count_and_are_held_again(tmp_path: Path) -> None:
    leave_run(tmp_path, "combined", 0, base=0.2, final=1.0, finished=False)
    assert not study.finished(tmp_path / "combined" / "seed-0")
    assert study_report.load(tmp_path) == {}
    leave_run(tmp_path, "combined", 1, base=0.2, final=1.0)
    assert study.finished(tmp_path / "combined" / "seed-1")


def test_report_only_writes_page_and_picture(tmp_path: Path) -> None:
    leave_run(tmp_path / "runs", "combined", 0, base=0.2, final=1.0)
    (tmp_path / "runs" / "combined" / "seed-0" / "environment.json").write_text('{"CLAWBACK_POLICY_THREADS": "1"}')
    report = tmp_path / "docs" / "homework.md"
    assert study.main(["--report-only", "--runs", str(tmp_path / "runs"), "--report", str(report)]) == 0
    kept = json.loads(report.with_suffix(".json").read_text())
    assert kept["arms"]["combined"]["runs"][0]["seed"] == 0
    assert kept["arms"]["combined"]["runs"][0]["environment"] == {"CLAWBACK_POLICY_THREADS": "1"}
    assert len(kept["arms"]["combined"]["runs"][0]["first_replies_passed"]) == 12
    assert kept["services"]["CLAWBACK_JUDGE_KIND"] == "rules"
    assert "| 2.00 (one seed) |" in report.read_text()  # held
    assert report.exists() and report.with_suffix(".png").stat().st_size > 5_000


def test_settings_of_the_environment_are_kept_and_secrets_are_not() -> None:
    given = {
        "CLAWBACK_TRAINER_KL_COEF": "0.1",
        "CLAWBACK_JUDGE_PRM_API_KEY": "s",
        "CLAWBACK_REDIS_URL": "u",
        "PATH": "p",
    }
    assert study.tuning(given) == {"CLAWBACK_TRAINER_KL_COEF": "0.1"}


def test_a_wrong_arm_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        study.main(["--arms", "combined,nonsense"])
    assert "no such arm: nonsense" in capsys.readouterr().err
