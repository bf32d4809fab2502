"""What the frozen base says about a batch: the teacher of the distillation term and the anchor of the KL term.

The base runs once, without gradient, over every prompt that a term of the objective needs, in packs that share
prefixes (the hinted and the un-hinted prompt of a turn are equal up to the hint). Then each token's hint and
candidate set are chosen.

Shapes: T response tokens of a sample, H hints, K candidates, D hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from libs.learning.distill import choose_hint, member
from libs.learning.head import chunks, wide
from libs.learning.model import Policy
from libs.learning.objective import ObjectiveConfig, Targets
from libs.learning.packing import pack, plan_packs
from libs.learning.samples import TrainSample, candidates
from libs.learning.scale import padded


@dataclass(frozen=True, slots=True)
class StepConfig:
    """How the step is computed; none of these change what it computes, except the first three."""

    learning_rate: float = 1e-3
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    chunk_rows: int = 128
    pack_tokens: int = 4096
    share_prefixes: bool = True


@dataclass(frozen=True, slots=True)
class Teacher:
    """The base's answers for one sample. T = its response tokens."""

    plain: Tensor | None  # hidden states [T, D] under the un-hinted prompt
    student_logp: Tensor  # [H, T, K] at the captured candidates
    top_ids: Tensor  # int64 [H, T, K], each hint's own top-K
    top_logp: Tensor  # [H, T, K]


Job = tuple[int, int | None]  # (sample, hint or None for the un-hinted prompt)


def _jobs(samples: Sequence[TrainSample], config: ObjectiveConfig) -> list[Job]:
    """The passes that the objective needs."""
    jobs: list[Job] = []
    for i, s in enumerate(samples):
        if config.kl_coef > 0 or _anchored(s, config):
            jobs.append((i, None))
        if config.w_opd > 0:
            jobs += [(i, h) for h in range(len(s.hint_prompts))]
    return jobs


def _anchored(sample: TrainSample, config: ObjectiveConfig) -> bool:
    return not sample.hint_prompts and config.anchor_coef > 0 and config.w_opd > 0


def teacher_pass(
    policy: Policy,
    shares: Sequence[Sequence[TrainSample]],
    rank: int,
    config: ObjectiveConfig,
    step: StepConfig,
) -> list[Teacher]:
    """The frozen base over the prompts of `shares[rank]`, in as many passes as the busiest rank takes."""
    wanted = [_jobs(share, config) for share in shares]
    if any(wanted):  # a rank without a pass of its own joins with one that nobody reads
        wanted = [jobs or [(0, None)] for jobs in wanted]
    plans = [
        plan_packs([_sequence(share[i], h) for i, h in jobs], step.pack_tokens)
        for share, jobs in zip(shares, wanted, strict=True)
    ]
    samples, jobs = shares[rank], wanted[rank]
    plain: dict[int, Tensor] = {}
    graded: dict[tuple[int, int], tuple[Tensor, Tensor, Tensor]] = {}
    with torch.no_grad():
        for members, _ in padded(plans[rank], max(map(len, plans))) if jobs else []:
            sequences = [_sequence(samples[jobs[j][0]], jobs[j][1]) for j in members]
            layout = pack(sequences, share=step.share_prefixes, device=policy.device)
            hidden = policy.hidden(layout, base=True)
            for j, rows in zip(members, layout.rows, strict=True):
                i, hint = jobs[j]
                own = hidden[torch.as_tensor(rows[-len(samples[i].response_ids) :]).to(policy.device)]
                if hint is None:
                    plain[i] = own
                if hint is not None or _anchored(samples[i], config):
                    graded[i, hint or 0] = _grade(policy, own, samples[i], config, step)
    return [_collect(i, s, plain, graded, policy, config) for i, s in enumerate(samples)]


def _sequence(sample: TrainSample, hint: int | None) -> tuple[int, ...]:
    prompt = sample.prompt_ids if hint is None else sample.hint_prompts[hint]
    return (*prompt, *sample.response_ids[:-1])


def _grade(
    policy: Policy, hidden: Tensor, sample: TrainSample, config: ObjectiveConfig, step: StepConfig
) -> tuple[Tensor, Tensor, Tensor]:
    """log pi_T at the captured candidates [T, K], the teacher's own top-K ids [T, K] and their log-probabilities."""
    ids, _ = candidates(sample, config.top_k, policy.vocab_size)
    at = torch.from_numpy(ids).to(policy.device)
    outs = [
        grade(wide(policy.head(hidden[rows], base=True)), at[rows], config.top_k)
        for rows in chunks(hidden.shape[0], step.chunk_rows)
    ]
    a, b, c = zip(*outs, strict=True)
    return torch.cat(a), torch.cat(b), torch.cat(c)


def grade(logits: Tensor, ids: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """From logits [T, V]: log-probabilities at `ids` [T, K], the top-k ids and their log-probabilities [T, k]."""
    norm = logits.logsumexp(-1, keepdim=True)
    top = logits.topk(k, dim=-1)
    return logits.gather(1, ids) - norm, top.indices, top.values - norm


def _collect(
    i: int,
    sample: TrainSample,
    plain: dict[int, Tensor],
    graded: dict[tuple[int, int], tuple[Tensor, Tensor, Tensor]],
    policy: Policy,
    config: ObjectiveConfig,
) -> Teacher:
    mine = [graded[key] for key in sorted(k for k in graded if k[0] == i)]
    if not mine:
        shape = (1, len(sample.response_ids), config.top_k)
        nothing = torch.zeros(shape, device=policy.device)
        return Teacher(plain.get(i), nothing, nothing.long(), nothing)
    return Teacher(
        plain.get(i),
        torch.stack([m[0] for m in mine]),
        torch.stack([m[1] for m in mine]),
        torch.stack([m[2] for m in mine]),
    )


def sample_targets(
    sample: TrainSample, teacher: Teacher, batch: int, config: ObjectiveConfig, vocab_size: int
) -> Targets:
    """The loss's inputs for one sample of a batch of `batch` samples: hint chosen, candidate set cut out."""
    device, dtype = teacher.student_logp.device, teacher.student_logp.dtype
    tokens = len(sample.response_ids)
    found, valid = candidates(sample, config.top_k, vocab_size)
    ids, mask = torch.from_numpy(found).to(device), torch.from_numpy(valid).to(device)
    lengths = [len(p) for p in sample.hint_prompts] or [0]
    chosen = choose_hint(config.selection, ids, mask, teacher.top_ids, lengths)
    at = torch.arange(tokens, device=device)
    top_ids, logp = teacher.top_ids[chosen, at], teacher.student_logp[chosen, at]
    if config.subset == "overlap":
        mask = member(ids, mask, top_ids)
    elif config.subset == "teacher":
        ids, logp, mask = top_ids, teacher.top_logp[chosen, at], torch.ones_like(mask)
    return Targets(
        advantage=torch.full((tokens,), sample.reward, device=device, dtype=dtype),
        token_weight=torch.full((tokens,), 1.0 / (batch * tokens), device=device, dtype=dtype),
        sample_weight=torch.full((tokens,), sample.weight, device=device, dtype=dtype),
        anchor=torch.full((tokens,), not sample.hint_prompts, device=device),
        old_logp=None,
        candidate_ids=ids,
        candidate_mask=mask,
        teacher_logp=logp,
        old_candidate_logp=None,
    )
