"""Intervals over seeds, against values from a table of Student's t."""

from __future__ import annotations

import pytest

from experiments.homework.stats import interval, likeness


def test_interval_of_five_seeds() -> None:
    found = interval([0.8, 0.9, 1.0, 0.9, 0.9])
    assert (found.mean, found.n) == (pytest.approx(0.9), 5)
    # s = 0.070711, half width = 2.776 * s / sqrt(5)
    assert found.high - found.mean == pytest.approx(0.087785, abs=1e-5)
    assert str(found) == "0.90 [0.81, 0.99]"


def test_one_seed_claims_nothing() -> None:
    alone = interval([1.0])
    assert not alone.apart_from(interval([0.0, 0.0, 0.0])) and "one seed" in str(alone)


def test_apart_means_no_overlap() -> None:
    assert interval([0.9, 0.91, 0.92]).apart_from(interval([0.1, 0.11, 0.12]))
    assert not interval([0.1, 0.9]).apart_from(interval([0.2, 0.8]))


def test_likeness() -> None:
    assert likeness("The cat sat.", "the cat sat") == 1.0
    assert likeness("a b c d", "e f g h") == 0.0
    assert likeness("a b c d", "a b x y") == 0.5
