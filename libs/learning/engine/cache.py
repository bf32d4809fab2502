"""Key/value memory: pools of equal slots, one pool per capacity, and a store of prompt prefixes.

A pool is dense so that one attention call serves all its sequences. Short requests sit in pools of short slots: a long
one does not make them pay for its length. Slots are numbered from 0 and the lowest free one is taken, so that the
part of the pool that a step reads stays short.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from dataclasses import dataclass, field

import torch
from torch import Tensor

from libs.learning.engine.weights import ModelShape

SMALLEST_CAPACITY = 256


def capacity_for(tokens: int, context: int) -> int:
    """The slot size, in tokens, for a sequence that may grow to `tokens`: the next power of two, at most context."""
    size = SMALLEST_CAPACITY
    while size < tokens:
        size *= 2
    return min(size, context)


@dataclass(eq=False)
class Pool:
    """Slots of `capacity` tokens. `data` is [layers, 2 (key, value), slots, kv_heads, capacity, head_dim]."""

    shape: ModelShape
    capacity: int
    device: torch.device
    dtype: torch.dtype
    data: Tensor = field(init=False)
    _free: list[int] = field(default_factory=list)
    used: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.data = self._zeros(0)

    def _zeros(self, slots: int) -> Tensor:
        s = self.shape
        # zeros, not empty: a masked position has weight 0, and 0 times a leftover NaN would still be NaN
        size = (s.layers, 2, slots, s.kv_heads, self.capacity, s.head_dim)
        return torch.zeros(size, device=self.device, dtype=self.dtype)

    @property
    def slots(self) -> int:
        return self.data.shape[2]

    @property
    def high(self) -> int:
        """One past the highest slot in use: attention covers slots [0, high)."""
        return max(self.used) + 1 if self.used else 0

    def take(self) -> int:
        """The lowest free slot; the pool doubles when it has none."""
        if not self._free:
            old = self.slots
            grown = self._zeros(max(1, old * 2))
            grown[:, :, :old] = self.data
            self.data = grown
            for slot in range(old, grown.shape[2]):
                heapq.heappush(self._free, slot)
        slot = heapq.heappop(self._free)
        self.used.add(slot)
        return slot

    def give(self, slot: int) -> None:
        self.used.remove(slot)
        heapq.heappush(self._free, slot)

    def move(self, slot: int, length: int) -> int:
        """Copy the first `length` tokens of `slot` into the lowest free slot and free it; returns the new slot."""
        target = self.take()
        self.data[:, :, target, :, :length] = self.data[:, :, slot, :, :length]
        self.give(slot)
        return target

    def read(self, slot: int, length: int) -> Tensor:
        """A copy of the first `length` tokens: [layers, 2, kv_heads, length, head_dim]."""
        return self.data[:, :, slot, :, :length].clone()

    def write(self, slot: int, prefix: Tensor) -> None:
        """Put a copy made by `read` (of this or another pool) at the start of `slot`."""
        self.data[:, :, slot, :, : prefix.shape[3]] = prefix


class Pools:
    """All pools of one device, within a budget of tokens."""

    def __init__(self, shape: ModelShape, budget_tokens: int, device: torch.device, dtype: torch.dtype) -> None:
        self._shape, self._budget = shape, budget_tokens
        self._device, self._dtype = device, dtype
        self._pools: dict[int, Pool] = {}

    @property
    def tokens_in_use(self) -> int:
        return sum(pool.capacity * len(pool.used) for pool in self._pools.values())

    @property
    def budget_tokens(self) -> int:
        return self._budget

    def fits(self, capacity: int) -> bool:
        return self.tokens_in_use + capacity <= self._budget

    def pool(self, capacity: int) -> Pool:
        """The pool of that capacity; empty pools of other sizes give their memory back when it gets scarce."""
        held = sum(p.capacity * p.slots for p in self._pools.values())
        if held + capacity > self._budget:
            for size in [size for size, p in self._pools.items() if not p.used and size != capacity]:
                del self._pools[size]
        if capacity not in self._pools:
            self._pools[capacity] = Pool(self._shape, capacity, self._device, self._dtype)
        return self._pools[capacity]


@dataclass(frozen=True, slots=True, eq=False)
class _Prefix:
    owner: int  # identity of the release that computed it
    tokens: Tensor  # int32 [P]
    kv: Tensor  # [layers, 2, kv_heads, P, head_dim]


class PrefixStore:
    """Key/value copies of prompts already computed, least recently used first out, within a budget of tokens.

    Entries belong to one release object and are found only under it: a cache never crosses releases.
    """

    def __init__(self, budget_tokens: int, *, shortest: int = 16) -> None:
        self._budget, self._shortest = budget_tokens, shortest
        self._entries: OrderedDict[int, _Prefix] = OrderedDict()
        self._serial = 0
        self.tokens_held = 0

    def longest(self, owner: int, tokens: Tensor, limit: int) -> tuple[int, Tensor | None]:
        """Length and key/values of the longest shared beginning of at most `limit` tokens, or (0, None)."""
        best, which = 0, None
        for key, entry in self._entries.items():
            if entry.owner == owner and (shared := _shared(entry.tokens, tokens, limit)) > best:
                best, which = shared, key
        if which is None or best < self._shortest:
            return 0, None
        self._entries.move_to_end(which)
        return best, self._entries[which].kv[:, :, :, :best]

    def wants(self, owner: int, tokens: Tensor) -> bool:
        """Whether storing this would add anything: it is long enough, fits, and no entry begins with it."""
        size = len(tokens)
        if size < self._shortest or size > self._budget:
            return False
        return all(e.owner != owner or _shared(e.tokens, tokens, size) < size for e in self._entries.values())

    def add(self, owner: int, tokens: Tensor, kv: Tensor) -> None:
        """Store a prefix; entries that are a beginning of it are dropped, as are the oldest beyond the budget."""
        for key, entry in list(self._entries.items()):
            if entry.owner == owner and _shared(entry.tokens, tokens, len(tokens)) == len(entry.tokens):
                self._drop(key)
        while self._entries and self.tokens_held + len(tokens) > self._budget:
            self._drop(next(iter(self._entries)))
        self._serial += 1
        self._entries[self._serial] = _Prefix(owner, tokens, kv)
        self.tokens_held += len(tokens)

    def forget(self, keep: set[int]) -> None:
        """Drop the entries of every release that is not in `keep`."""
        for key, entry in list(self._entries.items()):
            if entry.owner not in keep:
                self._drop(key)

    def _drop(self, key: int) -> None:
        self.tokens_held -= len(self._entries.pop(key).tokens)


def _shared(a: Tensor, b: Tensor, limit: int) -> int:
    """How many leading tokens agree, at most `limit`."""
    n = min(len(a), len(b), limit)
    differs = torch.ne(a[:n], b[:n])
    return int(differs.to(torch.uint8).argmax()) if bool(differs.any()) else n
