"""Key/value memory: slots, moves, prompts kept for reuse."""

from __future__ import annotations

import pytest
import torch

from libs.learning.engine.cache import Pool, Pools, PrefixStore, capacity_for
from libs.learning.engine.weights import ModelShape

SHAPE = ModelShape(
    layers=2, hidden=8, heads=2, kv_heads=1, head_dim=4, intermediate=8, vocab=16, context=1000, norm_eps=1e-5,
    eos_ids=frozenset(),
)  # fmt: skip
CPU = torch.device("cpu")


def pool(capacity: int = 8) -> Pool:
    return Pool(SHAPE, capacity, CPU, torch.float32)


def ids(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


@pytest.mark.parametrize(("tokens", "capacity"), [(1, 256), (256, 256), (257, 512), (900, 1000), (1000, 1000)])
def test_capacities_are_powers_of_two_up_to_the_context(tokens: int, capacity: int) -> None:
    assert capacity_for(tokens, SHAPE.context) == capacity


def test_the_lowest_free_slot_is_taken_and_growth_keeps_what_is_there() -> None:
    p = pool()
    first = p.take()
    p.data[:, :, first] = 3.0
    assert [p.take(), p.take()] == [1, 2]
    assert bool((p.data[:, :, first] == 3.0).all())
    p.give(first)
    assert p.take() == first
    assert p.high == 3


def test_unused_positions_are_zero_never_leftovers() -> None:
    p = pool()
    for _ in range(5):
        p.take()
    assert bool((p.data == 0).all())


def test_a_move_carries_the_tokens() -> None:
    p = pool()
    for _ in range(3):
        p.take()
    p.data[:, :, 2, :, :5] = torch.arange(5.0)[:, None]
    p.give(0)
    assert p.move(2, 5) == 0
    assert bool((p.data[:, :, 0, :, :5] == torch.arange(5.0)[:, None]).all())
    assert p.used == {0, 1}


def test_empty_pools_give_way_when_memory_is_scarce() -> None:
    pools = Pools(SHAPE, 512, CPU, torch.float32)
    small = pools.pool(256)
    slots = [small.take(), small.take()]
    assert not pools.fits(256)
    for slot in slots:
        small.give(slot)
    large = pools.pool(512)
    assert large.take() == 0
    assert pools.pool(256) is not small
    assert pools.tokens_in_use == 512


def kv(length: int) -> torch.Tensor:
    return torch.arange(float(length)).view(1, 1, 1, length, 1).expand(2, 2, 1, length, 4).clone()


def test_the_longest_shared_beginning_is_found_within_its_owner() -> None:
    store = PrefixStore(100, shortest=2)
    store.add(1, ids(1, 2, 3), kv(3))
    store.add(1, ids(1, 2, 4, 5), kv(4))
    store.add(2, ids(1, 2, 4, 5, 6), kv(5))
    size, found = store.longest(1, ids(1, 2, 4, 5, 6), 10)
    assert size == 4
    assert found is not None
    assert found.shape[3] == 4
    assert store.longest(1, ids(1, 2, 4, 5, 6), 3)[0] == 3, "the limit leaves the last token to be computed"
    assert store.longest(3, ids(1, 2, 3), 3) == (0, None)
    assert store.longest(1, ids(9, 2, 3), 3) == (0, None)


def test_short_overlaps_are_not_worth_a_copy() -> None:
    store = PrefixStore(100, shortest=3)
    store.add(1, ids(1, 2, 3, 4), kv(4))
    assert store.longest(1, ids(1, 2, 9), 3) == (0, None)
    assert not store.wants(1, ids(1, 2))


def test_longer_entries_replace_their_beginnings_and_the_oldest_leave() -> None:
    store = PrefixStore(8, shortest=2)
    store.add(1, ids(1, 2, 3), kv(3))
    assert not store.wants(1, ids(1, 2))
    store.add(1, ids(1, 2, 3, 4), kv(4))
    assert store.tokens_held == 4
    store.add(1, ids(5, 6, 7), kv(3))
    store.longest(1, ids(1, 2, 3, 4), 4)
    store.add(1, ids(8, 9), kv(2))
    assert store.longest(1, ids(5, 6, 7), 3) == (0, None), "least recently used"
    assert store.longest(1, ids(1, 2, 3, 4), 4)[0] == 4
    assert store.tokens_held == 6


def test_more_than_the_budget_is_not_wanted() -> None:
    assert not PrefixStore(3, shortest=1).wants(1, ids(1, 2, 3, 4))
    assert not PrefixStore(0, shortest=1).wants(1, ids(1))
