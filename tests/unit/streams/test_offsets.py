"""The offset tracker commits nothing that is not done, and in the end everything."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.streams.offsets import OffsetTracker

# Offsets with holes, the order in which they are finished, and how many of them get finished at all.
runs = st.lists(st.integers(0, 3), min_size=1, max_size=60).flatmap(
    lambda gaps: st.tuples(
        st.just([sum(gap + 1 for gap in gaps[: i + 1]) - 1 for i in range(len(gaps))]),
        st.permutations(range(len(gaps))),
        st.integers(0, len(gaps)),
    )
)


@given(runs)
def test_the_position_never_passes_a_record_that_is_not_done(run: tuple[list[int], list[int], int]) -> None:
    offsets, order, finished = run
    tracker = OffsetTracker()
    for offset in offsets:
        assert tracker.add(offset)
    done: set[int] = set()
    for index in order[:finished]:
        assert tracker.done(offsets[index])
        done.add(offsets[index])
        undone = [offset for offset in offsets if offset not in done]
        assert tracker.position == (min(undone) if undone else offsets[-1] + 1)
    if finished == len(offsets):
        assert tracker.position == offsets[-1] + 1
        assert len(tracker) == 0


@given(runs)
def test_positions_only_grow_while_records_come_in_between(run: tuple[list[int], list[int], int]) -> None:
    offsets, order, _ = run
    tracker = OffsetTracker()
    added = 0
    last = -1
    for index in order:
        while added <= index:
            tracker.add(offsets[added])
            added += 1
        tracker.done(offsets[index])
        assert tracker.position is not None
        assert tracker.position >= last
        last = tracker.position
    assert last == offsets[-1] + 1


def test_a_record_is_open_from_dispatch_to_done() -> None:
    tracker = OffsetTracker()
    assert not tracker.is_open(5)
    tracker.add(5)
    assert tracker.is_open(5)
    assert tracker.done(5)
    assert not tracker.is_open(5)


def test_done_twice_and_done_of_a_stranger_change_nothing() -> None:
    tracker = OffsetTracker()
    tracker.add(1)
    tracker.add(2)
    assert tracker.done(2)
    assert not tracker.done(2)
    assert not tracker.done(99)
    assert tracker.position == 1


def test_a_record_delivered_twice_is_taken_once() -> None:
    tracker = OffsetTracker()
    assert tracker.add(3)
    assert not tracker.add(3)
    assert len(tracker) == 1


def test_going_back_while_records_are_open_is_an_error() -> None:
    tracker = OffsetTracker()
    tracker.add(10)
    with pytest.raises(ValueError, match="offset 4 was dispatched after 10"):
        tracker.add(4)
