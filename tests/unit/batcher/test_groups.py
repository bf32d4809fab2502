"""Batches are prefixes of what arrived, and everything that arrived ends in exactly one of them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from libs.streams.types import StreamRecord
from services.batcher.groups import Closed, Groups, Waiting
from services.batcher.handler import sample_of
from tests.judged import EXAMPLE, judged

SAMPLE = sample_of(EXAMPLE)


def turn(number: int, since: float = 0.0, size: int = 10, partition: int = 0) -> Waiting:
    record = StreamRecord("turns.judged", partition, number, None, b"x" * size)
    return Waiting(record, sample_of(judged(f"f{number}")), since)


def numbers(closed: Closed) -> list[int]:
    return [waiting.record.offset for waiting in closed.turns]


def test_a_group_closes_when_it_is_full_and_scenarios_do_not_mix() -> None:
    groups = Groups(batch_size=2, max_bytes=1000, max_age_seconds=10)
    assert groups.add("a", turn(1)) == []
    assert groups.add("b", turn(2)) == []
    (closed,) = groups.add("a", turn(3))
    assert (closed.scenario, numbers(closed), closed.cause) == ("a", [1, 3], "size")
    assert groups.held == 1
    assert groups.waiting("b") == 1


def test_a_turn_that_would_burst_the_batch_closes_it_first() -> None:
    groups = Groups(batch_size=9, max_bytes=100, max_age_seconds=10)
    groups.add("a", turn(1, size=60))
    (closed,) = groups.add("a", turn(2, size=60))
    assert (numbers(closed), closed.cause) == ([1], "bytes")
    first, second = groups.add("a", turn(3, size=500))
    assert (numbers(first), numbers(second)) == ([2], [3])
    assert groups.held == 0


def test_what_waited_too_long_closes_and_younger_groups_stay() -> None:
    groups = Groups(batch_size=9, max_bytes=1000, max_age_seconds=10)
    groups.add("old", turn(1, since=0.0))
    groups.add("young", turn(2, since=5.0))
    groups.add("old", turn(3, since=9.0))
    (closed,) = groups.due(10.0, max_held=100)
    assert (closed.scenario, numbers(closed), closed.cause) == ("old", [1, 3], "age")
    assert list(groups.due(14.9, max_held=100)) == []
    assert [c.scenario for c in groups.due(15.0, max_held=100)] == ["young"]


def test_too_many_waiting_turns_close_the_oldest_groups() -> None:
    groups = Groups(batch_size=9, max_bytes=1000, max_age_seconds=1000)
    for number in range(6):
        groups.add(f"s{number}", turn(number, since=float(number)))
    closed = list(groups.due(6.0, max_held=4))
    assert [(c.scenario, c.cause) for c in closed] == [("s0", "pressure"), ("s1", "pressure")]
    assert groups.held == 4


def test_stale_turns_are_taken_out_and_the_others_keep_their_order() -> None:
    groups = Groups(batch_size=9, max_bytes=1000, max_age_seconds=10)
    for number in range(4):
        groups.add("a", turn(number))
    taken = groups.prune(lambda _scenario, waiting: waiting.record.offset in (0, 2))
    assert [waiting.record.offset for _, waiting in taken] == [0, 2]
    (closed,) = groups.due(100.0, max_held=100)
    assert numbers(closed) == [1, 3]


def test_revoked_partitions_are_forgotten() -> None:
    groups = Groups(batch_size=9, max_bytes=1000, max_age_seconds=10)
    groups.add("a", turn(1, partition=0))
    groups.add("a", turn(2, partition=1))
    groups.forget([("turns.judged", 0)])
    (closed,) = groups.due(100.0, max_held=100)
    assert numbers(closed) == [2]
    assert groups.held == 0


def test_a_waiting_feedback_is_known() -> None:
    groups = Groups(batch_size=9, max_bytes=1000, max_age_seconds=10)
    waiting = turn(1)
    groups.add("a", waiting)
    assert groups.holds("a", "f1") is waiting.record
    assert groups.holds("b", "f1") is None
    assert groups.holds("a", "f2") is None


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 60)), max_size=80),
    st.integers(1, 5),
    st.integers(20, 120),
)
def test_every_turn_ends_in_exactly_one_batch_of_its_scenario(
    arrivals: list[tuple[str, int]], batch_size: int, max_bytes: int
) -> None:
    groups = Groups(batch_size, max_bytes, max_age_seconds=10)
    closed: list[Closed] = []
    for number, (scenario, size) in enumerate(arrivals):
        record = StreamRecord("turns.judged", 0, number, None, b"x" * size)
        closed += groups.add(scenario, Waiting(record, SAMPLE, 0.0))
    closed += groups.due(1000.0, max_held=0)
    assert groups.held == 0
    for name in "abc":
        there = [n for c in closed if c.scenario == name for n in numbers(c)]
        assert there == [n for n, (scenario, _) in enumerate(arrivals) if scenario == name]
    for each in closed:
        assert 1 <= len(each.turns) <= batch_size
        assert sum(w.size for w in each.turns[:-1]) < max_bytes
