"""The student complains about what it sees and never says up front what it wants."""

from __future__ import annotations

import random

import pytest

from experiments.homework.student import (
    _THANKS,
    BRIEF,
    PLAIN,
    PREFERENCES,
    SYSTEM_PROMPT,
    Reply,
    answer,
)

PROSE = (
    "Plants make their own food from sunlight, water and air. The leaves catch the light, the roots bring water, and "
    "small openings let the air in, so that sugar is made while oxygen leaves the leaf. At night the plant breathes "
    "as we do, burning part of what it stored during the day to grow."
)
LISTED = "Here it is:\n" + "\n".join(f"{i}. item number {i} of the long list of items" for i in range(1, 8))


def test_a_list_is_complained_about_and_prose_is_thanked_for() -> None:
    text, content = answer(PLAIN, Reply(LISTED), random.Random(1))
    assert not content and text in PLAIN.complaints
    text, content = answer(PLAIN, Reply(PROSE), random.Random(1))
    assert content and text in _THANKS


def test_nonsense_is_rejected_in_its_own_words() -> None:
    text, content = answer(PLAIN, Reply("plastic " * 30), random.Random(1))
    assert not content and text not in PLAIN.complaints


def test_brief_wants_short_and_finished() -> None:
    short = Reply("The war began because of alliances and one murder in Sarajevo.")
    assert BRIEF.faults(short) == []
    assert BRIEF.faults(Reply(short.text, finished=False)) == ["too_long"]
    assert BRIEF.faults(Reply(PROSE)) == ["too_long"]


@pytest.mark.parametrize("preference", PREFERENCES.values(), ids=lambda p: p.name)
def test_complaints_vary_and_some_are_russian(preference: object) -> None:
    seen = {answer(preference, Reply(LISTED * 3), random.Random(i))[0] for i in range(200)}  # type: ignore[arg-type]
    assert len(seen) >= 6
    assert any("а" <= char <= "я" for text in seen for char in text.lower())


def test_the_same_random_source_gives_the_same_words() -> None:
    assert answer(PLAIN, Reply(LISTED), random.Random(7)) == answer(PLAIN, Reply(LISTED), random.Random(7))


def test_the_preference_is_not_stated_up_front() -> None:
    from experiments.homework.questions import HELDOUT, STREAM

    for text in (SYSTEM_PROMPT, *STREAM, *HELDOUT):
        assert not any(word in text.lower() for word in ("list ", "bullet", "prose", "paragraph", "bold", "heading"))
