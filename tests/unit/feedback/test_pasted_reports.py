"""A report that a person pasted is known by its ends, however long it is."""

from __future__ import annotations

import pytest

from libs.feedback.rules.tools import looks_like_failure

FILLER = "The lake was calm and the boat went home.\n" * 2_000
TRACEBACK = "Traceback (most recent call last):\n  File 'a.py', line 1\nValueError: no\n"


@pytest.mark.parametrize("text", [TRACEBACK, TRACEBACK + FILLER, FILLER + TRACEBACK])
def test_a_report_is_known(text: str) -> None:
    assert looks_like_failure(text)


def test_long_words_are_none() -> None:
    assert not looks_like_failure(FILLER)
