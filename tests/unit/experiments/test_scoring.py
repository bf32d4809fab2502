"""What the student rejects and what it accepts."""

from __future__ import annotations

import pytest

from experiments.homework.scoring import degenerate, distinct_ratio, list_violations, words

PROSE = (
    "Plants make their own food from sunlight, water and air. The leaves catch the light, the roots bring water, and "
    "small openings let the air in, so that sugar is made while oxygen leaves the leaf."
)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("The **main** cause was debt.", "bold"),
        ("__Causes__ were many.", "bold"),
        ("## Causes\nThere were many.", "heading"),
        ("Causes:\n- debt\n- bread", "bullet"),
        ("Causes:\n  * debt", "bullet"),
        ("Causes:\n• debt", "bullet"),
        ("Causes:\n1. debt\n2. bread", "numbered"),
        ("Causes:\n1) debt", "numbered"),
        ("a) debt\nb) bread", "numbered"),
        ("Step 1: read the question.", "step"),
        ("First read.\n**Step 2**: write.", "step"),
    ],
)
def test_each_kind_of_structure_is_found(text: str, kind: str) -> None:
    assert kind in list_violations(text)


@pytest.mark.parametrize(
    "text",
    [
        PROSE,
        "In 1789. The crowd was angry.",  # a number that ends a sentence is no list
        "The area is 3 * 4 = 12, and 5 - 2 is 3.",
        "The next step 2 people took was to leave.",
        "It is well-known - and true - that bread was dear.",
        "Use snake_case_names and 2 ** 3 with care.",
    ],
)
def test_prose_passes(text: str) -> None:
    assert list_violations(text) == []


def test_prose_is_not_degenerate() -> None:
    assert degenerate(PROSE) is None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "too_short"),
        ("Yes.", "too_short"),
        (
            "the main type of plastic is plastic and it " * 2
            + "the main type of plastic is used for many other good things in our big homes every single day now",
            "loop",
        ),
        ("plastic is plastic " * 10, "few_distinct_words"),
    ],
)
def test_degenerate_replies_are_named(text: str, why: str) -> None:
    assert degenerate(text) == why


def test_words_and_ratio_work_in_any_script() -> None:
    assert words("Шаги, don't — «оставь»") == ["шаги", "don't", "оставь"]
    assert distinct_ratio("да да нет нет") == 0.5
    assert distinct_ratio("") == 0.0
