"""On-policy distillation from hindsight hints (OPD): a teacher that has read the hint grades each candidate token.

The teacher pi_T is the frozen base model under the hinted prompt. On a candidate set S_t of token t, |S_t| <= K:

    w_v   = softmax over S_t of log pi_old(v)
    A_v   = clamp(log pi_T(v) - log pi_old(v), -clamp, +clamp) * w_v
    L_t   = sum over v in S_t of PPO's clipped surrogate with the full-vocabulary ratio pi(v) / pi_old(v)

S_t is the student's captured top-K ("student"), the teacher's own top-K ("teacher") or their intersection
("overlap"). With several hints one is chosen by how its own top-K overlaps with the student's: the best over the
sequence ("sequence_optimal"), the best at each token ("token_optimal"), or simply the "shortest" hint.

Source: OpenClaw-RL (arXiv 2603.10165). Shapes: T response tokens, H hints, K candidates.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from libs.learning.ppo import clipped_surrogate

Selection = Literal["sequence_optimal", "token_optimal", "shortest"]
Subset = Literal["student", "teacher", "overlap"]
SELECTIONS: tuple[Selection, ...] = ("sequence_optimal", "token_optimal", "shortest")
SUBSETS: tuple[Subset, ...] = ("student", "teacher", "overlap")


def valid_candidates(ids: Tensor, vocab_size: int) -> Tensor:
    """bool [T, K]: ids inside the vocabulary, each counted once a row (the first wins). Ragged rows pad with -1."""
    inside = (ids >= 0) & (ids < vocab_size)
    same = ids.unsqueeze(-1) == ids.unsqueeze(-2)  # [T, K, K]
    earlier = torch.ones(ids.shape[-1], ids.shape[-1], dtype=torch.bool, device=ids.device).tril(-1)
    return inside & ~(same & earlier).any(-1)


def member(ids: Tensor, mask: Tensor, others: Tensor) -> Tensor:
    """bool, the shape of `ids` [..., K]: which valid ids also stand in the same row of `others` [..., J]."""
    return mask & (ids.unsqueeze(-1) == others.unsqueeze(-2)).any(-1)


def choose_hint(
    selection: Selection, student_ids: Tensor, student_mask: Tensor, teacher_ids: Tensor, hint_tokens: list[int]
) -> Tensor:
    """int64 [T]: the hint that each token uses. The first of equals wins.

    `student_ids` int64 [T, K], `teacher_ids` int64 [H, T, K] (each hint's own top-K), `hint_tokens` the H lengths.
    """
    tokens = student_ids.shape[0]
    if selection == "shortest":
        best = min(range(len(hint_tokens)), key=lambda i: hint_tokens[i])
        return torch.full((tokens,), best, dtype=torch.int64, device=student_ids.device)
    overlap = member(student_ids.unsqueeze(0), student_mask.unsqueeze(0), teacher_ids).sum(-1)  # [H, T]
    if selection == "sequence_optimal":
        return overlap.sum(1).argmax().expand(tokens)
    return overlap.argmax(0)


def candidate_weights(old_logp: Tensor, mask: Tensor) -> Tensor:
    """w_v [T, K]: softmax of `old_logp` over each row's valid candidates; a row without any is all zero."""
    masked = old_logp.detach().masked_fill(~mask, float("-inf"))
    top = masked.amax(-1, keepdim=True)
    top = torch.where(torch.isfinite(top), top, torch.zeros_like(top))
    weights = (masked - top).exp()
    return weights / weights.sum(-1, keepdim=True).clamp_min(torch.finfo(weights.dtype).tiny)


def candidate_advantages(teacher_logp: Tensor, old_logp: Tensor, mask: Tensor, clamp: float) -> Tensor:
    """A_v [T, K], zero where `mask` is not set. `clamp` in nats."""
    gap = torch.where(mask, teacher_logp - old_logp, torch.zeros_like(old_logp)).clamp(-clamp, clamp)
    return (gap * candidate_weights(old_logp, mask)).detach()


def distillation_loss(
    logp: Tensor, old_logp: Tensor, teacher_logp: Tensor, mask: Tensor, clip: tuple[float, float], clamp: float
) -> tuple[Tensor, Tensor]:
    """L_t [T], and the share of w_v that the clip stops [T]. All inputs [T, K]; `clip` is (low, high)."""
    # Values outside the mask may be anything, also non-finite: they must reach neither the loss nor the gradient.
    logp = torch.where(mask, logp, torch.zeros_like(logp))
    old_logp = torch.where(mask, old_logp, torch.zeros_like(old_logp)).detach()
    advantage = candidate_advantages(teacher_logp, old_logp, mask, clamp)
    loss, clipped = clipped_surrogate(logp, old_logp, advantage, *clip)
    return (loss * mask).sum(-1), (clipped * candidate_weights(old_logp, mask)).sum(-1)
