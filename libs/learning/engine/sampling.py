"""Sampling one token per row, and what is captured about it.

Log-probabilities are natural logs of the full-vocabulary softmax at temperature 1, before penalties and truncation:
they describe the model, not the sampler. Each sequence draws from its own seeded stream, one uniform number a token,
by inverting the cumulative distribution: batch mates cannot change what a seed gives.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

_BLOCK = 256
_HEAD = 256  # candidates looked at first for top-p; the full sort is only needed for flat distributions


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to sample. temperature 0 is greedy; top_p in (0, 1]; top_k 0 means all; captured > 0 keeps that many."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: dict[int, float] = field(default_factory=dict)
    captured: int = 0

    @property
    def shifts_logits(self) -> bool:
        return bool(self.frequency_penalty or self.presence_penalty or self.logit_bias)


@dataclass(frozen=True, slots=True)
class Drawn:
    """One sampled token of one row; `top_ids` and `top_logprobs` hold the row's `captured` likeliest tokens."""

    token: int
    logprob: float
    top_ids: list[int]
    top_logprobs: list[float]


@dataclass(frozen=True, slots=True)
class Row:
    """What the sampler needs of one sequence: its settings, a uniform number in [0, 1), its tokens so far."""

    sampling: Sampling
    uniform: float
    generated: Counter[int]


@torch.inference_mode()
def draw(logits: Tensor, rows: Sequence[Row]) -> list[Drawn | None]:
    """Sample a token per row of float32 [N, vocab] logits. None where a row's logits are not finite."""
    norm = torch.logsumexp(logits, dim=-1)
    tokens = _choose(_shifted(logits, rows), rows)
    chosen = logits.gather(1, tokens[:, None])[:, 0] - norm
    most = max(row.sampling.captured for row in rows)
    top_ids: list[list[int]] = [[] for _ in rows]
    top_logprobs: list[list[float]] = [[] for _ in rows]
    if most:
        values, ids = torch.topk(logits, most, dim=-1)
        top_logprobs, top_ids = (values - norm[:, None]).tolist(), ids.tolist()
    finite = torch.isfinite(norm).tolist()
    out: list[Drawn | None] = []
    for i, (token, logprob) in enumerate(zip(tokens.tolist(), chosen.tolist(), strict=True)):
        k = rows[i].sampling.captured
        out.append(Drawn(token, logprob, top_ids[i][:k], top_logprobs[i][:k]) if finite[i] else None)
    return out


def _shifted(logits: Tensor, rows: Sequence[Row]) -> Tensor:
    """Logits with penalties and biases applied, in a copy when any row has some."""
    if not any(row.sampling.shifts_logits for row in rows):
        return logits
    logits = logits.clone()
    for i, row in enumerate(rows):
        s = row.sampling
        moves: dict[int, float] = dict(s.logit_bias)
        if s.frequency_penalty or s.presence_penalty:
            for token, count in row.generated.items():
                moves[token] = moves.get(token, 0.0) - s.frequency_penalty * count - s.presence_penalty
        if moves:
            ids = torch.tensor(list(moves), device=logits.device)
            logits[i, ids] += torch.tensor(list(moves.values()), device=logits.device)
    return logits


def _choose(logits: Tensor, rows: Sequence[Row]) -> Tensor:
    """Token ids int64 [N]: greedy rows, truncated rows (top-p, top-k) and plain rows each in one go."""
    greedy = [i for i, row in enumerate(rows) if row.sampling.temperature == 0]
    cut = [i for i, r in enumerate(rows) if r.sampling.temperature and (r.sampling.top_p < 1 or r.sampling.top_k)]
    plain = [i for i, r in enumerate(rows) if r.sampling.temperature and r.sampling.top_p >= 1 and not r.sampling.top_k]
    out = torch.empty(len(rows), dtype=torch.int64, device=logits.device)
    for which, pick in ((greedy, None), (cut, _truncated), (plain, _inverted)):
        if not which:
            continue
        part = logits if len(which) == len(rows) else logits[which]
        if pick is None:
            out[which] = part.argmax(dim=-1)
            continue
        chosen = [rows[i] for i in which]
        temperature = torch.tensor([row.sampling.temperature for row in chosen], device=logits.device)
        uniform = torch.tensor([row.uniform for row in chosen], dtype=torch.float64, device=logits.device)
        out[which] = pick(part / temperature[:, None], uniform, chosen)
    return out


def _inverted(scaled: Tensor, uniform: Tensor, _: Sequence[Row]) -> Tensor:
    """Inverse of the cumulative distribution, in two levels: block sums first, then inside one block.

    A cumulative sum over the whole vocabulary costs several times as much on a CPU.
    """
    probs = torch.softmax(torch.nan_to_num(scaled), dim=-1)
    vocab = probs.shape[1]
    if vocab % _BLOCK:
        probs = torch.nn.functional.pad(probs, (0, _BLOCK - vocab % _BLOCK))
    blocks = probs.view(len(probs), -1, _BLOCK)
    sums = blocks.sum(dim=-1, dtype=torch.float64).cumsum(dim=-1)
    goal = uniform * sums[:, -1]
    which = torch.searchsorted(sums, goal[:, None], right=True)[:, 0].clamp_(max=sums.shape[1] - 1)
    at = torch.arange(len(probs), device=probs.device)
    before = torch.where(which > 0, sums[at, (which - 1).clamp(min=0)], torch.zeros_like(goal))
    inside = blocks[at, which].double().cumsum(dim=-1)
    place = torch.searchsorted(inside, (goal - before)[:, None], right=True)[:, 0]
    # rounding may carry the goal past the block's end: take the last token that has any probability
    last = (inside < inside[:, -1:]).sum(dim=-1)
    return (which * _BLOCK + torch.minimum(place, last)).clamp_(max=vocab - 1)


def _truncated(scaled: Tensor, uniform: Tensor, rows: Sequence[Row]) -> Tensor:
    """Nucleus sampling (arXiv 1904.09751): the smallest set whose mass reaches top_p, at most top_k tokens."""
    scaled = torch.nan_to_num(scaled)
    norm = torch.logsumexp(scaled, dim=-1, keepdim=True)
    values, ids = torch.topk(scaled, min(_HEAD, scaled.shape[1]), dim=-1)
    cumulative = (values - norm).double().exp_().cumsum(dim=-1)
    out = torch.empty(len(rows), dtype=torch.int64, device=scaled.device)
    for i, row in enumerate(rows):
        s = row.sampling
        sums, tokens = cumulative[i], ids[i]
        enough = bool(sums[-1] >= s.top_p) or 0 < s.top_k <= len(sums)
        if not enough and len(sums) < scaled.shape[1]:
            ordered, tokens = torch.sort(scaled[i], descending=True)
            sums = (ordered - norm[i]).double().exp_().cumsum(dim=-1)
        kept = int(torch.searchsorted(sums, torch.tensor(s.top_p, dtype=torch.float64, device=sums.device))) + 1
        kept = min(kept, len(sums), s.top_k or len(sums))
        goal = uniform[i] * sums[kept - 1]
        out[i] = tokens[min(int(torch.searchsorted(sums, goal, right=True)), kept - 1)]
    return out
