"""One optimizer step over one batch of judged turns.

1. The base runs once, without gradient, over every un-hinted and hinted prompt that a term needs, in packs that
   share prefixes. Its log-probabilities on the candidates are the teacher's; its hidden states serve the KL term.
2. The hint and the candidate set of each token are chosen.
3. The student runs over the same packs with gradient; the loss is taken in chunks of rows (head.py).
4. The gradient's norm is clipped and the optimizer steps, unless loss or norm is not finite: then nothing changes.

The old log-probabilities of PPO are the student's own before the step. With one step per batch they equal the
forward pass of 3, so no pass is spent on them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from libs.learning.head import chunked_loss, token_stats
from libs.learning.model import Policy
from libs.learning.objective import ObjectiveConfig, Student, Targets, objective
from libs.learning.packing import pack, plan_packs
from libs.learning.samples import TrainSample
from libs.learning.scale import (
    average_whole_gradients,
    clip_gradients,
    gather,
    padded,
    share_of,
    sum_over_ranks,
    world,
)
from libs.learning.teacher import StepConfig, Teacher, sample_targets, teacher_pass

Guard = Callable[[dict[str, float]], str | None]


@dataclass(frozen=True, slots=True)
class StepResult:
    """`applied` False: nothing changed and `reason` says why. `metrics` holds losses, coefficients, norms, sizes."""

    applied: bool
    reason: str
    metrics: dict[str, float]
    logp: dict[str, list[float]] = field(default_factory=dict)  # feedback id -> log pi of its tokens before the step


def run_step(
    policy: Policy,
    optimizer: torch.optim.Optimizer,
    samples: Sequence[TrainSample],
    config: ObjectiveConfig,
    step: StepConfig,
    guard: Guard | None = None,
) -> StepResult:
    """Apply one step for `samples` (admitted, not empty). All of it or nothing is applied.

    `guard` sees the metrics before anything changes and may name a reason not to.
    """
    optimizer.zero_grad(set_to_none=True)
    loss, metrics, logp = accumulate(policy, samples, config, step)
    params = list(policy.named_trainable().values())
    norm = clip_gradients(params, step.max_grad_norm)
    metrics |= {"grad_norm": norm, "learning_rate": step.learning_rate}
    if not math.isfinite(loss) or not math.isfinite(norm):
        optimizer.zero_grad(set_to_none=True)
        return StepResult(False, "not_finite_loss" if not math.isfinite(loss) else "not_finite_gradient", metrics, logp)
    refused = guard(metrics) if guard is not None else None
    if refused:
        optimizer.zero_grad(set_to_none=True)
        return StepResult(False, refused, metrics, logp)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return StepResult(True, "", metrics, logp)


def accumulate(
    policy: Policy, samples: Sequence[TrainSample], config: ObjectiveConfig, step: StepConfig
) -> tuple[float, dict[str, float], dict[str, list[float]]]:
    """Add the batch's gradient to the parameters. Returns the loss, metrics and each sample's log-probabilities."""
    rank, ranks = world()
    shares = [share_of(samples, r, ranks) for r in range(ranks)]
    mine, idle = shares[rank], rank >= len(samples)
    teachers = teacher_pass(policy, shares, rank, config, step)
    plans = [plan_packs([_sequence(s) for s in share], step.pack_tokens) for share in shares]
    totals: dict[str, float] = {"student_tokens": 0.0, "student_tokens_unshared": 0.0}
    logp: dict[str, list[float]] = {}
    used: dict[str, float] = {}
    for members, weight in padded(plans[rank], max(map(len, plans))):
        counts = weight * (not idle)
        part = [mine[i] for i in members]
        layout = pack([_sequence(s) for s in part], share=step.share_prefixes, device=policy.device)
        rows = [_response_rows(layout.rows[j], s) for j, s in enumerate(part)]
        hidden = policy.hidden(layout)[torch.cat(rows).to(policy.device)]
        loss, parts, own, used = _pack_loss(
            policy, hidden, part, [teachers[i] for i in members], len(samples), config, step
        )
        # FSDP averages over the ranks, the batch's loss is the sum over them.
        (loss * (counts * ranks)).backward()  # type: ignore[no-untyped-call]
        totals["student_tokens"] += counts * layout.tokens
        totals["student_tokens_unshared"] += counts * layout.unshared_tokens
        logp |= own if counts else {}
        for name, value in parts.items():
            totals[name] = totals.get(name, 0.0) + counts * float(value)
    average_whole_gradients(list(policy.named_trainable().values()))
    totals, logp = sum_over_ranks(totals), gather(logp)
    return totals["loss"], totals | {f"coef_{name}": value for name, value in used.items()}, logp


def _sequence(sample: TrainSample) -> tuple[int, ...]:
    """What the student reads: the last response token predicts nothing that is trained."""
    return (*sample.prompt_ids, *sample.response_ids[:-1])


def _response_rows(rows: object, sample: TrainSample) -> Tensor:
    """Rows whose hidden state predicts each response token: the last prompt token's and all but the last token's."""
    return torch.as_tensor(rows)[len(sample.prompt_ids) - 1 :]


def _pack_loss(
    policy: Policy,
    hidden: Tensor,
    samples: Sequence[TrainSample],
    teachers: Sequence[Teacher],
    batch: int,
    config: ObjectiveConfig,
    step: StepConfig,
) -> tuple[Tensor, dict[str, Tensor], dict[str, list[float]], dict[str, float]]:
    """Loss of one pack from the hidden states [N, D] that predict its response tokens, in sample order.

    Returns the loss, its parts, each sample's log-probabilities and the coefficients that the loss used.
    """
    each = [sample_targets(s, t, batch, config, policy.vocab_size) for s, t in zip(samples, teachers, strict=True)]
    targets = Targets.concatenate(each)
    sampled = torch.tensor([i for s in samples for i in s.response_ids], device=policy.device)
    base = torch.cat([t.plain for t in teachers if t.plain is not None]) if config.kl_coef > 0 else None
    logp = torch.empty(hidden.shape[0], device=policy.device)
    used: dict[str, float] = {}

    def rows_loss(logits: Tensor, rows: slice) -> tuple[Tensor, dict[str, Tensor]]:
        part = targets.rows(rows)
        with torch.no_grad():
            base_logits = policy.head(base[rows], base=True) if base is not None else None
        token, candidate, kl, entropy = token_stats(logits, base_logits, sampled[rows], part.candidate_ids)
        logp[rows] = token.detach()
        loss, parts, coefficients = objective(Student(token, candidate, kl if base is not None else None), part, config)
        used.update(coefficients)
        parts["entropy"] = (part.token_weight * entropy).sum()
        return loss, parts

    loss, parts = chunked_loss(hidden, policy.head, policy.head_params(), rows_loss, step.chunk_rows)
    lengths = [len(s.response_ids) for s in samples]
    own = {s.feedback_id: t.tolist() for s, t in zip(samples, torch.split(logp, lengths), strict=True)}
    return loss, parts, own, used


__all__ = ["StepConfig", "StepResult", "accumulate", "run_step"]
