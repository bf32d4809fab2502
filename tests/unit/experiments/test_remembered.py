"""The base model's replies are asked once, scored by whoever reads them, and never taken for other questions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from experiments.homework.remembered import Remembered
from experiments.homework.sessions import Sampling, SessionResult
from experiments.homework.student import BRIEF, PLAIN

LIST = "- one thing to do\n- another thing to do\n"
QUESTIONS = ["What is rain?", "What is snow?"]
SAMPLING = Sampling(seed=5)


def keep(directory: Path) -> None:
    results = [
        SessionResult(number=0, question=QUESTIONS[0], first_reply=LIST, release_id="x@base"),
        SessionResult(number=1, question=QUESTIONS[1], first_reply="Snow falls when water freezes.", whole=False),
    ]
    Remembered(directory, QUESTIONS, SAMPLING, "Help.").keep(results)


def test_what_was_kept_is_scored_by_the_preference_that_reads_it(tmp_path: Path) -> None:
    keep(tmp_path)
    plain = Remembered(tmp_path, QUESTIONS, SAMPLING, "Help.").results(PLAIN)
    assert [r.faults for r in plain] == [["bullet", "too_short"], ["too_short"]]
    brief = Remembered(tmp_path, QUESTIONS, SAMPLING, "Help.").results(BRIEF)
    assert [r.passed for r in brief] == [True, False]  # the second was cut at the token limit
    assert [(r.number, r.question, r.release_id) for r in brief] == [
        (0, "What is rain?", "x@base"),
        (1, "What is snow?", ""),
    ]


@pytest.mark.parametrize(
    ("questions", "sampling", "system"),
    [
        (QUESTIONS[:1], SAMPLING, "Help."),
        (QUESTIONS, replace(SAMPLING, seed=6), "Help."),
        (QUESTIONS, replace(SAMPLING, max_tokens=10), "Help."),
        (QUESTIONS, SAMPLING, "Help.\n\n# Memory"),
        (QUESTIONS, SAMPLING, None),
    ],
)
def test_anything_that_changes_a_reply_is_another_key(
    tmp_path: Path, questions: list[str], sampling: Sampling, system: str | None
) -> None:
    keep(tmp_path)
    assert Remembered(tmp_path, questions, sampling, system).results(PLAIN) == []


def test_without_a_directory_nothing_is_kept() -> None:
    kept = Remembered(None, QUESTIONS, SAMPLING, None)
    kept.keep([])
    assert kept.results(PLAIN) == []
