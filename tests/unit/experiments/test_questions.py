"""The stream and the held-out questions are ours and never meet."""

from __future__ import annotations

from experiments.homework.questions import HELDOUT, STREAM


def test_sets_are_large_enough_and_disjoint() -> None:
    assert len(STREAM) == len(set(STREAM)) == 36
    assert len(HELDOUT) == len(set(HELDOUT)) == 24
    assert not set(STREAM) & set(HELDOUT)
