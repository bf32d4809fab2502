"""Continuous batching: each step advances every running sequence, takes in waiting ones, and lets finished ones go.

Prompts are computed in pieces of bounded size in the same pass as the decoding rows, so that a long prompt slows the
others down but never stops them. A sequence keeps its release to the end: after a release changed, old and new ones
run side by side, each token of a response comes from one release, and no keys or values cross between them.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch

from libs.learning.engine.cache import Pool, Pools, PrefixStore, capacity_for
from libs.learning.engine.decoder import Decoder, Decoding, Plan, Prefill
from libs.learning.engine.lora import Lora
from libs.learning.engine.sampling import draw
from libs.learning.engine.sequence import Release, Request, Sequence, State, Step
from libs.learning.engine.text import Decode
from libs.learning.engine.weights import ModelShape, Weights

News = list[tuple[Sequence, Step]]


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one engine, in tokens and sequences."""

    max_batch: int = 32  # sequences that run at once
    kv_budget_tokens: int = 65_536
    prefix_budget_tokens: int = 8_192
    prefill_tokens: int = 256  # prompt tokens computed per step while others decode
    prefill_tokens_alone: int = 1_024


class Engine:
    """Not thread-safe: one thread submits, cancels and steps."""

    def __init__(self, weights: Weights, decode: Decode, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self.shape: ModelShape = weights.shape
        self._decode = decode
        self._pools = Pools(weights.shape, self.limits.kv_budget_tokens, weights.device, weights.dtype)
        self._prefixes = PrefixStore(self.limits.prefix_budget_tokens)
        self._waiting: OrderedDict[str, deque[Sequence]] = OrderedDict()
        self._running: list[Sequence] = []
        self._device = weights.device
        self._retired: set[int] = set()  # owners whose last sequences still run: nothing new is kept for them

    @property
    def waiting(self) -> int:
        return sum(len(queue) for queue in self._waiting.values())

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def kv_tokens(self) -> int:
        return self._pools.tokens_in_use

    @property
    def idle(self) -> bool:
        return not self._running and not self._waiting

    def fits(self, prompt_tokens: int, max_new_tokens: int) -> bool:
        """Whether such a request can ever run here."""
        total = prompt_tokens + max_new_tokens
        return total <= self.shape.context and capacity_for(total, self.shape.context) <= self.limits.kv_budget_tokens

    def submit(self, request: Request) -> Sequence:
        """Queue a request. Raises ValueError when it can never fit: callers check with `fits` first."""
        if not request.prompt or not self.fits(len(request.prompt), request.max_new_tokens):
            raise ValueError(f"{len(request.prompt)} + {request.max_new_tokens} tokens cannot run here")
        sequence = Sequence(request, self._decode)
        self._waiting.setdefault(request.queue, deque()).append(sequence)
        return sequence

    def forget_releases(self, serving: Iterable[Release]) -> None:
        """Drop cached prompts of every release that neither serves nor runs."""
        serves = {release.owner for release in serving}
        runs = {s.request.release.owner for s in (*self._running, *self._queued())}
        self._retired = runs - serves
        self._prefixes.forget(serves | runs)

    def abort(self) -> News:
        """End every sequence with an error, after a step failed; the engine is empty and usable afterwards."""
        everyone = [*self._running, *self._queued()]
        self._waiting.clear()
        return [self._end(s, Step(None, s.text.finish(), "error")) for s in everyone]

    def step(self) -> News:
        """One token for every running sequence that is past its prompt; a piece of prompt for the others."""
        news = self._reap_cancelled()
        self._admit()
        for decoder in dict.fromkeys(s.request.release.decoder for s in self._running):
            news += self._advance(decoder)
        return news

    def _queued(self) -> Iterator[Sequence]:
        return (sequence for queue in self._waiting.values() for sequence in queue)

    # --- taking in and letting go --------------------------------------------------------------------------------

    def _admit(self) -> None:
        """Take waiting sequences in, one queue after the other, while slots and key/value memory last."""
        blocked: set[str] = set()
        while len(self._running) < self.limits.max_batch:
            name = next((n for n in self._waiting if n not in blocked), None)
            if name is None:
                return
            queue = self._waiting[name]
            sequence = queue[0]
            capacity = self._capacity(sequence)
            if not self._pools.fits(capacity) or self._shares_with_prefilling(sequence):
                blocked.add(name)  # it keeps its place; others may fit
                continue
            queue.popleft()
            self._waiting.move_to_end(name)
            if not queue:
                del self._waiting[name]
            self._start(sequence, self._pools.pool(capacity))

    def _capacity(self, sequence: Sequence) -> int:
        return capacity_for(len(sequence.prompt) + sequence.request.max_new_tokens, self.shape.context)

    def _shares_with_prefilling(self, sequence: Sequence) -> bool:
        """Whether a prompt being computed right now shares much with this one: waiting a step saves computing it."""
        owner, size = sequence.request.release.owner, len(sequence.prompt)
        known, _ = self._prefixes.longest(owner, sequence.prompt, size - 1)
        for other in self._running:
            if other.state is State.PREFILLING and other.request.release.owner == owner:
                limit = min(size - 1, len(other.prompt))
                same = int((sequence.prompt[:limit] == other.prompt[:limit]).to(torch.int32).cumprod(0).sum())
                if same >= known + 32 and self._prefixes.wants(owner, other.prompt):
                    return True
        return False

    def _start(self, sequence: Sequence, pool: Pool) -> None:
        sequence.pool, sequence.slot = pool, pool.take()
        sequence.state = State.PREFILLING
        # the last prompt token is always computed: its logits give the first reply token
        owner = sequence.request.release.owner
        reused, kv = self._prefixes.longest(owner, sequence.prompt, len(sequence.prompt) - 1)
        if kv is not None:
            pool.write(sequence.slot, kv)
            sequence.length = sequence.reused = reused
        self._running.append(sequence)

    def _reap_cancelled(self) -> News:
        news = [self._end(s, Step(None, "", "cancelled")) for s in list(self._running) if s.cancelled]
        for name, queue in list(self._waiting.items()):
            for sequence in [s for s in queue if s.cancelled]:
                queue.remove(sequence)
                news.append(self._end(sequence, Step(None, "", "cancelled")))
            if not queue:
                del self._waiting[name]
        return news

    def _end(self, sequence: Sequence, step: Step) -> tuple[Sequence, Step]:
        if sequence.pool is not None:
            if step.finish in ("stop", "length"):
                self._remember(
                    sequence, torch.cat((sequence.prompt, torch.tensor(sequence.generated[:-1], dtype=torch.int32)))
                )
            sequence.pool.give(sequence.slot)
            self._running.remove(sequence)
            sequence.pool = None
        sequence.state = State.DONE
        return sequence, step

    def _remember(self, sequence: Sequence, tokens: torch.Tensor) -> None:
        """Keep the keys and values of `tokens`, which lie at the start of the sequence's slot, for later prompts."""
        owner = sequence.request.release.owner
        assert sequence.pool is not None
        if owner not in self._retired and self._prefixes.wants(owner, tokens):
            self._prefixes.add(owner, tokens, sequence.pool.read(sequence.slot, len(tokens)))

    # --- one forward pass ----------------------------------------------------------------------------------------

    def _advance(self, decoder: Decoder) -> News:
        mine = [s for s in self._running if s.request.release.decoder is decoder]
        self._compact(mine)
        pieces = self._pieces(mine)
        # rows of one adapter lie together, so that the adapter is one product over a slice
        pieces.sort(key=lambda p: p[0].request.release.owner)
        plan, sampled = _plan(pieces, self._device)
        logits = decoder.forward(plan)
        for sequence, count in pieces:
            sequence.length += count
        if not sampled:
            return []
        drawn = draw(logits, [s.row() for s in sampled])
        news: News = []
        for sequence, token in zip(sampled, drawn, strict=True):
            if sequence.state is State.PREFILLING:
                sequence.state = State.DECODING
                self._remember(sequence, sequence.prompt)
            step = sequence.accept(token)
            news.append((sequence, step) if step.finish is None else self._end(sequence, step))
        return news

    def _pieces(self, mine: list[Sequence]) -> list[tuple[Sequence, int]]:
        """(sequence, tokens) for this pass: one for each decoding one, prompt pieces within the budget."""
        pieces = [(s, 1) for s in mine if s.state is State.DECODING]
        left = self.limits.prefill_tokens if pieces else self.limits.prefill_tokens_alone
        for sequence in mine:
            if sequence.state is State.PREFILLING and left > 0:
                count = min(left, len(sequence.prompt) - sequence.length)
                pieces.append((sequence, count))
                left -= count
        return pieces

    def _compact(self, mine: list[Sequence]) -> None:
        """Move sequences from high slots into low free ones where attention would read mostly empty slots."""
        for pool in {s.pool for s in mine if s.pool is not None}:
            owners = {s.slot: s for s in self._running if s.pool is pool}
            while pool.high > 4 and pool.high > len(pool.used) * 3 // 2:
                top = owners.pop(pool.high - 1)
                top.slot = pool.move(top.slot, top.length)
                owners[top.slot] = top


def _plan(pieces: list[tuple[Sequence, int]], device: torch.device) -> tuple[Plan, list[Sequence]]:
    """Lay the pieces out as rows. Returns the plan and the sequences that get a token, in the order of its logits."""
    tokens: list[int] = []
    positions: list[int] = []
    adapters: list[tuple[int, int, Lora]] = []
    decoding: dict[Pool, list[tuple[int, int, int]]] = {}
    prefill: list[Prefill] = []
    sampled: list[tuple[Sequence, int]] = []
    for sequence, count in pieces:
        start, stop, at = len(tokens), len(tokens) + count, sequence.length
        assert sequence.pool is not None
        if sequence.state is State.DECODING:
            tokens.append(sequence.generated[-1])
            decoding.setdefault(sequence.pool, []).append((sequence.slot, start, at))
        else:
            tokens += sequence.prompt[at : at + count].tolist()
            prefill.append(Prefill(sequence.pool, sequence.slot, start, stop, at))
        positions += range(at, at + count)
        lora = sequence.request.release.lora
        if lora is not None:
            if adapters and adapters[-1][2] is lora and adapters[-1][1] == start:
                adapters[-1] = (adapters[-1][0], stop, lora)
            else:
                adapters.append((start, stop, lora))
        if at + count >= len(sequence.prompt):
            sampled.append((sequence, stop - 1))

    def index(values: list[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int64, device=device)

    parts = [
        Decoding(pool, index([r[0] for r in rows]), index([r[1] for r in rows]), index([r[2] for r in rows]))
        for pool, rows in decoding.items()
    ]
    plan = Plan(index(tokens), index(positions), adapters, parts, prefill, index([row for _, row in sampled]))
    return plan, [sequence for sequence, _ in sampled]
