"""What a caller asks of the engine and what it gets back."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from enum import Enum
from itertools import count
from typing import Literal

import torch
from torch import Tensor

from libs.learning.engine.cache import Pool
from libs.learning.engine.decoder import Decoder
from libs.learning.engine.lora import Lora
from libs.learning.engine.sampling import Drawn, Row, Sampling
from libs.learning.engine.text import Decode, TextStream

FinishReason = Literal["stop", "length", "cancelled", "error"]
_owners = count(1)


@dataclass(frozen=True, slots=True, eq=False)
class Release:
    """Weights that can serve: a whole model and maybe an adapter on it. `owner` marks what it computed as its own."""

    release_id: str
    decoder: Decoder
    lora: Lora | None = None
    owner: int = field(default_factory=lambda: next(_owners))


@dataclass(frozen=True, slots=True)
class Request:
    """One completion. A sequence keeps the release it was submitted with until it ends."""

    prompt: Seq[int]
    release: Release
    queue: str  # requests of different queues are admitted in turn: one scenario cannot starve another
    max_new_tokens: int
    sampling: Sampling = field(default_factory=Sampling)
    stops: Seq[str] = ()
    stop_ids: frozenset[int] = frozenset()
    seed: str | None = None  # equal seeds give equal random numbers, whatever else runs


class State(Enum):
    WAITING = "waiting"
    PREFILLING = "prefilling"
    DECODING = "decoding"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class Step:
    """News of one sequence: a token and the text that it completes, or the end. The last one has `finish`."""

    drawn: Drawn | None
    text: str
    finish: FinishReason | None = None


class Sequence:
    """A request on its way. Only the engine changes it."""

    def __init__(self, request: Request, decode: Decode) -> None:
        self.request = request
        self.prompt: Tensor = torch.tensor(list(request.prompt), dtype=torch.int32)
        self.state = State.WAITING
        self.cancelled = False
        self.pool: Pool | None = None
        self.slot = -1
        self.length = 0  # tokens whose keys and values are in the slot
        self.reused = 0  # of them, copied from another request's prompt
        self.generated: list[int] = []
        self.counts: Counter[int] = Counter()
        self.text = TextStream(decode, request.stops)
        self._random = random.Random(request.seed)  # seeded from the system when the seed is None

    def row(self) -> Row:
        """The sampler's view; draws the next random number of this sequence's own stream."""
        return Row(self.request.sampling, self._random.random(), self.counts)

    def accept(self, drawn: Drawn | None) -> Step:
        """Take a sampled token and decide whether the sequence ends with it."""
        if drawn is None:
            return Step(None, self.text.finish(), "error")
        self.generated.append(drawn.token)
        self.counts[drawn.token] += 1
        if drawn.token in self.request.stop_ids:
            return Step(drawn, self.text.finish(), "stop")
        text = self.text.push(drawn.token)
        if self.text.stopped:
            return Step(drawn, text, "stop")
        if len(self.generated) >= self.request.max_new_tokens:
            return Step(drawn, text + self.text.finish(), "length")
        return Step(drawn, text)
