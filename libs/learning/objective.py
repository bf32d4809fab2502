"""The training objective over the response tokens of one batch, and the proof that every coefficient reaches it.

    loss = w_rl * RL + w_opd * OPD + kl_coef * KL(pi || pi_base)

RL  = sum_t u_t * PPO(A_t = reward of the turn, not normalised)          (ppo.py)
OPD = sum_t u_t * c_t * L_t, c_t = anchor_coef without a hint, else 1     (distill.py)
KL  = sum_t m_t * KL over the full vocabulary at token t

m_t = 1 / (B * R_i): the mean over a sample's R_i tokens, then over the B samples; u_t = m_t * the sample's weight.
The weights are global, so a batch split into parts sums to the same loss.

Shapes: N response tokens of all samples in a row, K candidates a token.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, get_args

import torch
from torch import Tensor

from libs.errors import ConfigError
from libs.learning.distill import Selection, Subset, distillation_loss
from libs.learning.ppo import clipped_surrogate


@dataclass(frozen=True, slots=True)
class ObjectiveConfig:
    """Coefficients of the objective. `clamp` is in nats; `top_k` is K. The clip is shared by RL and OPD."""

    w_rl: float = 1.0
    w_opd: float = 1.0
    kl_coef: float = 0.1
    anchor_coef: float = 0.0  # 1 in the reference; it undoes learning, see docs/learning.md
    clip_low: float = 0.2
    clip_high: float = 0.28
    clamp: float = 1.0
    top_k: int = 4
    selection: Selection = "sequence_optimal"
    subset: Subset = "student"

    def __post_init__(self) -> None:
        for name in ("w_rl", "w_opd", "kl_coef", "anchor_coef"):
            if getattr(self, name) < 0:
                raise ConfigError(f"objective.{name} is {getattr(self, name)}, must be 0 or more")
        if not 0 < self.clip_low < 1 or self.clip_high <= 0 or self.clamp <= 0 or self.top_k < 1:
            raise ConfigError("objective: clip_low in (0, 1), clip_high > 0, clamp > 0 and top_k >= 1 are required")
        for name, kind in (("selection", Selection), ("subset", Subset)):
            if getattr(self, name) not in get_args(kind):
                raise ConfigError(f"objective.{name} is {getattr(self, name)!r}, choose one of {get_args(kind)}")


@dataclass(frozen=True, slots=True)
class Targets:
    """What the loss needs besides the student, without gradient."""

    advantage: Tensor  # float [N], the turn's reward at each of its tokens
    token_weight: Tensor  # float [N], m_t
    sample_weight: Tensor  # float [N], the sample's weight at each of its tokens
    anchor: Tensor  # bool [N], no hint: the un-hinted prompt is the teacher's
    old_logp: Tensor | None  # float [N]; None: the step's own log-probabilities, i.e. ratio 1
    candidate_ids: Tensor  # int64 [N, K], 0 where not valid
    candidate_mask: Tensor  # bool [N, K]
    teacher_logp: Tensor  # float [N, K]
    old_candidate_logp: Tensor | None  # float [N, K] or None as above

    def rows(self, part: slice) -> Targets:
        """The same for some of the tokens."""
        values: dict[str, Any] = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        cut: dict[str, Any] = {name: None if v is None else v[part] for name, v in values.items()}
        return Targets(**cut)

    @staticmethod
    def concatenate(parts: Sequence[Targets]) -> Targets:
        """Several samples' targets in a row; all with or all without old log-probabilities."""
        names = [f.name for f in dataclasses.fields(Targets)]
        columns = {name: [getattr(p, name) for p in parts] for name in names}
        joined: dict[str, Any] = {n: None if c[0] is None else torch.cat(c) for n, c in columns.items()}
        return Targets(**joined)


@dataclass(frozen=True, slots=True)
class Student:
    """What the student says, with gradient."""

    logp: Tensor  # float [N], log pi of the sampled token
    candidate_logp: Tensor  # float [N, K]
    kl: Tensor | None  # float [N], KL(pi || pi_base) over the vocabulary; None when kl_coef is 0


def objective(
    student: Student, targets: Targets, config: ObjectiveConfig
) -> tuple[Tensor, dict[str, Tensor], dict[str, float]]:
    """The loss (scalar), its parts (additive over rows), and the coefficients as this computation used them.

    A term whose coefficient is 0 is not computed, and its coefficients are then not among the used ones.
    """
    loss = student.logp.sum() * 0.0
    parts: dict[str, Tensor] = {}
    used: dict[str, float] = {}
    weight = targets.token_weight * targets.sample_weight
    clip = (config.clip_low, config.clip_high)
    if config.w_rl > 0:
        old = student.logp.detach() if targets.old_logp is None else targets.old_logp
        terms, clipped = clipped_surrogate(student.logp, old, targets.advantage, *clip)
        rl = (weight * terms).sum()
        loss = loss + config.w_rl * rl
        parts |= {"loss_rl": rl.detach(), "clipped_rl": (targets.token_weight * clipped).sum()}
        used |= _used(config, "w_rl", "clip_low", "clip_high")
    if config.w_opd > 0:
        old = student.candidate_logp.detach() if targets.old_candidate_logp is None else targets.old_candidate_logp
        mask = targets.candidate_mask & (~targets.anchor | (config.anchor_coef > 0)).unsqueeze(-1)
        terms, clipped = distillation_loss(student.candidate_logp, old, targets.teacher_logp, mask, clip, config.clamp)
        pull = torch.ones_like(terms).masked_fill(targets.anchor, config.anchor_coef)
        opd = (weight * pull * terms).sum()
        loss = loss + config.w_opd * opd
        parts |= {"loss_opd": opd.detach(), "clipped_opd": (targets.token_weight * clipped).sum()}
        used |= _used(config, "w_opd", "clamp", "clip_low", "clip_high", "top_k")
        used |= _used(config, "anchor_coef") if config.anchor_coef > 0 else {}
    if config.kl_coef > 0 and student.kl is not None:
        kl = (targets.token_weight * student.kl).sum()
        loss = loss + config.kl_coef * kl
        parts["loss_kl"] = kl.detach()
        used |= _used(config, "kl_coef")
    return loss, {"loss": loss.detach(), **parts}, used


def _used(config: ObjectiveConfig, *names: str) -> dict[str, float]:
    return {name: float(getattr(config, name)) for name in names}


# How much each coefficient is moved to see whether the loss notices.
_NUDGE = 0.8


def check_coefficients(config: ObjectiveConfig) -> None:
    """Raise ConfigError, naming it, for a coefficient that was set and cannot move the loss.

    A coefficient counts as set when it differs from the default. The loss is evaluated on a made-up batch on which
    every term and every clip acts, once as configured and once with the coefficient changed.
    """
    student, targets = _probe_batch(config)
    default = ObjectiveConfig()
    value, _, used = objective(student, targets, config)
    for field in dataclasses.fields(config):
        setting = getattr(config, field.name)
        if setting == getattr(default, field.name) or not isinstance(setting, float) or setting == 0:
            continue
        change: dict[str, Any] = {field.name: setting * _NUDGE}
        moved, _, _ = objective(student, targets, dataclasses.replace(config, **change))
        if used.get(field.name) != setting or moved == value:
            raise ConfigError(
                f"objective.{field.name} = {setting} does not reach the loss; set the weight of its term above 0 "
                f"(w_rl {config.w_rl}, w_opd {config.w_opd}, kl_coef {config.kl_coef}) or leave it at its default"
            )


def _probe_batch(config: ObjectiveConfig) -> tuple[Student, Targets]:
    """Eight tokens whose ratios, gaps and rewards spread so far that every clip and the clamp act on some of them."""
    n, k = 8, config.top_k
    reach = torch.linspace(-1.0, 1.0, n, dtype=torch.float64)
    rows = reach.unsqueeze(-1) + torch.linspace(-0.1, 0.1, k, dtype=torch.float64)
    log_ratio = 2.0 - math.log1p(-config.clip_low) + math.log1p(config.clip_high)
    student = Student(logp=reach * log_ratio - 3.0, candidate_logp=rows * log_ratio - 3.0, kl=reach.abs() + 0.5)
    targets = Targets(
        advantage=torch.tensor([1.0, -1.0, -1.0, 1.0] * (n // 4), dtype=torch.float64),
        token_weight=torch.full((n,), 1.0 / n, dtype=torch.float64),
        sample_weight=torch.ones(n, dtype=torch.float64),
        anchor=torch.arange(n) % 4 == 3,
        old_logp=torch.full((n,), -3.0, dtype=torch.float64),
        candidate_ids=torch.arange(k).expand(n, k),
        candidate_mask=torch.ones(n, k, dtype=torch.bool),
        teacher_logp=rows.roll(2, 0) * 3.0 * config.clamp - 3.0,
        old_candidate_logp=torch.full((n, k), -3.0, dtype=torch.float64),
    )
    return student, targets
