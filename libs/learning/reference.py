"""The objective once more, dense, in float64, one token and one candidate at a time: what the fast form must equal.

Written from the equations of objective.py and shares no code with the fast form. For tests and for reading; it holds
all logits and is slow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from libs.learning.objective import ObjectiveConfig


@dataclass(frozen=True, slots=True)
class DenseSample:
    """One sample with everybody's logits, float64 [T, V]. `teacher_logits` holds one table per hint."""

    student_logits: Tensor  # with gradient
    old_logits: Tensor
    base_logits: Tensor
    teacher_logits: Sequence[Tensor]
    hint_lengths: Sequence[int]
    response_ids: Sequence[int]
    captured_ids: Sequence[
        Sequence[int]
    ]  # per token, ragged, most likely first; ids outside the vocabulary do not count
    reward: float
    weight: float


def reference_loss(samples: Sequence[DenseSample], config: ObjectiveConfig) -> Tensor:
    """The loss, float64 scalar, differentiable in every `student_logits`."""
    rl = torch.zeros((), dtype=torch.float64)
    opd, kl = rl.clone(), rl.clone()
    for s in samples:
        tokens = len(s.response_ids)
        student, old = s.student_logits.log_softmax(-1), s.old_logits.log_softmax(-1)
        base = s.base_logits.log_softmax(-1)
        teachers = [t.log_softmax(-1) for t in (s.teacher_logits or [s.base_logits])]
        hints = _hints(s, teachers, config)
        pull = 1.0 if s.teacher_logits else config.anchor_coef
        share = 1.0 / (len(samples) * tokens)
        for t in range(tokens):
            y = s.response_ids[t]
            rl = rl + share * s.weight * _clipped(student[t, y], old[t, y], s.reward, config)
            kl = kl + share * (student[t].exp() * (student[t] - base[t])).sum()
            if pull > 0:
                term = _distilled(student[t], old[t], teachers[hints[t]][t], s.captured_ids[t], config)
                opd = opd + share * s.weight * pull * term
    return config.w_rl * rl + config.w_opd * opd + config.kl_coef * kl


def _clipped(logp: Tensor, old: Tensor, advantage: float | Tensor, config: ObjectiveConfig) -> Tensor:
    ratio = torch.exp(logp - old)
    held = torch.clamp(ratio, 1 - config.clip_low, 1 + config.clip_high)
    return -torch.minimum(ratio * advantage, held * advantage)


def _captured(ids: Sequence[int], config: ObjectiveConfig, vocab: int) -> list[int]:
    """The student's candidates: the first K captured, each once, inside the vocabulary."""
    out: list[int] = []
    for i in list(ids)[: config.top_k]:
        if 0 <= i < vocab and i not in out:
            out.append(i)
    return out


def _top(teacher: Tensor, config: ObjectiveConfig) -> list[int]:
    return [int(i) for i in teacher.argsort(descending=True)[: config.top_k]]


def _hints(s: DenseSample, teachers: Sequence[Tensor], config: ObjectiveConfig) -> list[int]:
    """Which hint each token listens to."""
    tokens, vocab = s.student_logits.shape
    if config.selection == "shortest" and s.teacher_logits:
        return [min(range(len(teachers)), key=lambda h: s.hint_lengths[h])] * tokens
    overlap = [
        [len(set(_captured(s.captured_ids[t], config, vocab)) & set(_top(teacher[t], config))) for t in range(tokens)]
        for teacher in teachers
    ]
    if config.selection == "token_optimal":
        return [max(range(len(teachers)), key=lambda h: overlap[h][t]) for t in range(tokens)]
    return [max(range(len(teachers)), key=lambda h: sum(overlap[h]))] * tokens


def _distilled(
    student: Tensor, old: Tensor, teacher: Tensor, captured: Sequence[int], config: ObjectiveConfig
) -> Tensor:
    mine, theirs = _captured(captured, config, student.shape[0]), _top(teacher, config)
    chosen = {"student": mine, "teacher": theirs, "overlap": [v for v in mine if v in theirs]}[config.subset]
    total = torch.zeros((), dtype=torch.float64)
    mass = sum(float(old[v].detach().exp()) for v in chosen)
    for v in chosen:
        gap = float((teacher[v] - old[v]).detach())
        advantage = min(max(gap, -config.clamp), config.clamp) * float(old[v].detach().exp()) / mass
        total = total + _clipped(student[v], old[v], advantage, config)
    return total
