"""One judged turn as the update sees it: token ids, candidates, reward and the hinted prompts.

Everything is checked here, once: what cannot be trained leaves with a reason and the rest goes on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from libs.errors import DeadLetterError
from libs.learning.prompts import ChatMessage, render, with_hint

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float32]

_FLOAT32_MAX = float(np.finfo(np.float32).max)  # the loss is computed in it


@dataclass(frozen=True, slots=True)
class TrainSample:
    """R response tokens after P prompt tokens; K captured candidates a token, -1 where a row has fewer."""

    feedback_id: str
    prompt_ids: tuple[int, ...]  # [P], as the engine had them
    response_ids: tuple[int, ...]  # [R], as sampled
    topk_ids: IntArray  # [R, K], most likely first
    captured_logp: FloatArray  # [R], the engine's, for the drift monitor only
    hint_prompts: tuple[tuple[int, ...], ...]  # the whole prompt once per hint; empty: the un-hinted anchor
    reward: float
    weight: float = 1.0
    release_id: str = ""

    @property
    def rejected(self) -> bool:
        """Whether the turn asks for something else: a negative reward, or a hint without any verdict."""
        return self.reward < 0 or (self.reward == 0 and bool(self.hint_prompts))


@dataclass(frozen=True, slots=True)
class Limits:
    """`max_tokens` bounds prompt plus response, hinted prompts too."""

    max_tokens: int
    vocab_size: int


def hinted_prompts(
    tokenizer: Any, messages: Sequence[ChatMessage], tools: Sequence[Any] | None, hints: Sequence[str]
) -> tuple[tuple[int, ...], ...]:
    """The teacher's prompt for each hint, blank hints left out. Raises DeadLetterError when the template refuses."""
    return tuple(tuple(render(tokenizer, with_hint(messages, h), tools)) for h in hints if h.strip())


def fault(sample: TrainSample, limits: Limits) -> str | None:
    """Why the sample cannot be trained, as a short label, or None."""
    ids = (*sample.prompt_ids, *sample.response_ids)
    if not sample.prompt_ids or not sample.response_ids:
        return "empty"
    if not abs(sample.reward) <= _FLOAT32_MAX or not 0 < sample.weight <= _FLOAT32_MAX:  # NaN fails both
        return "not_finite"
    if min(ids) < 0 or max(ids) >= limits.vocab_size:
        return "vocabulary"
    if len(ids) > limits.max_tokens:
        return "too_long"
    if sample.topk_ids.ndim != 2 or len(sample.topk_ids) != len(sample.response_ids):
        return "ragged"
    return None


def admit(samples: Sequence[TrainSample], limits: Limits) -> tuple[list[TrainSample], dict[str, str], int]:
    """(trainable samples, feedback id -> reason of the others, hinted prompts left out because they were too long).

    A sample whose every hint is too long is dropped ("hint_too_long"): without its hint it would mean something else.
    """
    kept: list[TrainSample] = []
    dropped: dict[str, str] = {}
    lost_hints = 0
    for sample in samples:
        reason = fault(sample, limits)
        fitting = tuple(
            p
            for p in sample.hint_prompts
            if len(p) + len(sample.response_ids) <= limits.max_tokens and max(p) < limits.vocab_size
        )
        if reason is None and sample.hint_prompts and not fitting:
            reason = "hint_too_long"
        if reason is not None:
            dropped[sample.feedback_id] = reason
            continue
        lost_hints += len(sample.hint_prompts) - len(fitting)
        kept.append(replace(sample, hint_prompts=fitting))
    return kept, dropped, lost_hints


def candidates(sample: TrainSample, k: int, vocab_size: int) -> tuple[IntArray, npt.NDArray[np.bool_]]:
    """The first K captured candidates [R, K] (0 where not valid) and which are valid: in range, no repeats."""
    r = len(sample.response_ids)
    ids = np.full((r, k), -1, dtype=np.int64)
    have = sample.topk_ids[:, :k]
    ids[:, : have.shape[1]] = have
    same = ids[:, :, None] == ids[:, None, :]
    repeated = (same & np.tri(k, k, -1, dtype=bool)).any(-1)
    valid = (ids >= 0) & (ids < vocab_size) & ~repeated
    return np.where(valid, ids, 0), valid


def check_unique(samples: Sequence[TrainSample]) -> None:
    """Raise DeadLetterError when one feedback stands twice in a batch: it would be trained twice."""
    ids = [s.feedback_id for s in samples]
    if len(set(ids)) != len(ids):
        raise DeadLetterError("a batch names one feedback twice; the batcher must send each once", reason="repeated")
