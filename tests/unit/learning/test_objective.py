"""The fast objective equals the dense float64 reference, values and gradients, on random shapes, masks and settings."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from libs.errors import ConfigError
from libs.learning.distill import SELECTIONS, SUBSETS, candidate_weights, distillation_loss
from libs.learning.head import chunked_loss, token_stats
from libs.learning.objective import ObjectiveConfig, Student, Targets, check_coefficients, objective
from libs.learning.reference import DenseSample, reference_loss
from libs.learning.samples import TrainSample
from libs.learning.teacher import Teacher, grade, sample_targets

VOCAB, HIDDEN = 13, 5


@st.composite
def configs(draw: st.DrawFn) -> ObjectiveConfig:
    coefficient = st.sampled_from([0.0, 0.3, 1.0, 2.5])
    return ObjectiveConfig(
        w_rl=draw(coefficient),
        w_opd=draw(coefficient),
        kl_coef=draw(coefficient),
        anchor_coef=draw(coefficient),
        clip_low=draw(st.sampled_from([0.1, 0.2, 0.7])),
        clip_high=draw(st.sampled_from([0.1, 0.28, 3.0])),
        clamp=draw(st.sampled_from([0.2, 1.0, 5.0])),
        top_k=draw(st.integers(1, 5)),
        selection=draw(st.sampled_from(SELECTIONS)),
        subset=draw(st.sampled_from(SUBSETS)),
    )


def captured_ids(draw: st.DrawFn, tokens: int) -> list[list[int]]:
    """Ragged rows, repeats and ids outside the vocabulary, also no candidate at all."""
    width = draw(st.integers(0, 6))
    row = st.lists(st.integers(-1, VOCAB + 1), min_size=width, max_size=width)
    return draw(st.lists(row, min_size=tokens, max_size=tokens))


@st.composite
def dense_samples(draw: st.DrawFn) -> list[DenseSample]:
    out = []
    for _ in range(draw(st.integers(1, 3))):
        tokens = draw(st.integers(1, 5))
        generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
        hints = draw(st.integers(0, 3))

        def table(generator: torch.Generator = generator, tokens: int = tokens) -> Tensor:
            return torch.randn(tokens, VOCAB, generator=generator, dtype=torch.float64) * 2

        base = table()
        out.append(
            DenseSample(
                student_logits=base + 0.3 * table(),
                old_logits=base + 0.3 * table(),
                base_logits=base,
                teacher_logits=[base + 0.5 * table() for _ in range(hints)],
                hint_lengths=draw(st.lists(st.integers(1, 4), min_size=hints, max_size=hints)),
                response_ids=draw(st.lists(st.integers(0, VOCAB - 1), min_size=tokens, max_size=tokens)),
                captured_ids=captured_ids(draw, tokens),
                reward=draw(st.sampled_from([-1.0, 0.0, 1.0])),
                weight=draw(st.sampled_from([0.3, 1.0])),
            )
        )
    return out


def as_train_sample(s: DenseSample, name: str) -> TrainSample:
    return TrainSample(
        feedback_id=name,
        prompt_ids=(1,),
        response_ids=tuple(s.response_ids),
        topk_ids=np.array([list(row) for row in s.captured_ids], dtype=np.int64).reshape(len(s.response_ids), -1),
        captured_logp=np.zeros(len(s.response_ids), np.float32),
        hint_prompts=tuple((1,) * n for n in s.hint_lengths),
        reward=s.reward,
        weight=s.weight,
    )


def fast_targets(samples: list[DenseSample], config: ObjectiveConfig, *, given_old: bool) -> Targets:
    parts = []
    for i, s in enumerate(samples):
        sample = as_train_sample(s, str(i))
        from libs.learning.samples import candidates

        ids, _ = candidates(sample, config.top_k, VOCAB)
        graded = [grade(t, torch.from_numpy(ids), config.top_k) for t in (s.teacher_logits or [s.base_logits])]
        teacher = Teacher(None, *(torch.stack(column) for column in zip(*graded, strict=True)))
        targets = sample_targets(sample, teacher, len(samples), config, VOCAB)
        if given_old:
            old = s.old_logits.log_softmax(-1)
            targets = dataclasses.replace(
                targets,
                old_logp=old.gather(1, torch.tensor(s.response_ids).unsqueeze(1)).squeeze(1),
                old_candidate_logp=old.gather(1, targets.candidate_ids),
            )
        parts.append(targets)
    return Targets.concatenate(parts)


def fast_loss(samples: list[DenseSample], config: ObjectiveConfig, targets: Targets, chunk_rows: int) -> Tensor:
    """The loss through chunks of rows; an identity head turns the logits themselves into hidden states."""
    base = torch.cat([s.base_logits for s in samples])
    sampled = torch.tensor([y for s in samples for y in s.response_ids])

    def rows_loss(logits: Tensor, rows: slice) -> tuple[Tensor, dict[str, Tensor]]:
        part = targets.rows(rows)
        logp, candidate, kl, _ = token_stats(logits, base[rows].clone(), sampled[rows], part.candidate_ids)
        loss, parts, _ = objective(Student(logp, candidate, kl), part, config)
        return loss, parts

    hidden = torch.cat([s.student_logits for s in samples])
    loss, parts = chunked_loss(hidden, lambda h: h * 1.0, [], rows_loss, chunk_rows)
    torch.testing.assert_close(parts["loss"], loss.detach())
    return loss


@settings(deadline=None, max_examples=150)
@given(dense_samples(), configs(), st.integers(1, 7), st.booleans())
def test_values_and_gradients_equal_the_reference(
    samples: list[DenseSample], config: ObjectiveConfig, chunk_rows: int, given_old: bool
) -> None:
    if not given_old:  # one step per batch: the old policy is the student before the step
        samples = [dataclasses.replace(s, old_logits=s.student_logits.clone()) for s in samples]
    leaves = [s.student_logits.clone().requires_grad_() for s in samples]
    with_grad = [dataclasses.replace(s, student_logits=x) for s, x in zip(samples, leaves, strict=True)]
    want = reference_loss(with_grad, config)
    want_grads = torch.autograd.grad(want, leaves)
    targets = fast_targets(samples, config, given_old=given_old)
    got = fast_loss(with_grad, config, targets, chunk_rows)
    got_grads = torch.autograd.grad(got, leaves)
    torch.testing.assert_close(got, want, atol=1e-10, rtol=1e-10)
    for a, b in zip(got_grads, want_grads, strict=True):
        torch.testing.assert_close(a, b, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("selection", SELECTIONS)
@pytest.mark.parametrize("subset", SUBSETS)
def test_every_selection_and_subset_moves_the_gradient(selection: str, subset: str) -> None:
    """Each of the nine cells differs from the plain RL gradient, so none is quietly switched off."""
    generator = torch.Generator().manual_seed(3)
    logits = [torch.randn(4, VOCAB, generator=generator, dtype=torch.float64) for _ in range(4)]
    top = logits[0].topk(4, -1).indices
    sample = DenseSample(
        student_logits=logits[0].clone().requires_grad_(),
        old_logits=logits[0],
        base_logits=logits[1],
        teacher_logits=[logits[0] + 0.4 * logits[2], logits[0] + 0.4 * logits[3]],
        hint_lengths=[3, 2],
        response_ids=top[:, 0].tolist(),
        captured_ids=top.tolist(),
        reward=-1.0,
        weight=1.0,
    )
    config = ObjectiveConfig(selection=selection, subset=subset, kl_coef=0.0)  # type: ignore[arg-type]
    grads = []
    for c in (config, dataclasses.replace(config, w_opd=0.0)):
        loss = fast_loss([sample], c, fast_targets([sample], c, given_old=True), 2)
        grads.append(torch.autograd.grad(loss, sample.student_logits)[0])
    assert not torch.allclose(grads[0], grads[1])


@given(st.integers(1, 6), st.integers(1, 5), st.integers(0, 2**31))
def test_candidate_weights_are_a_distribution_over_the_valid_ones(tokens: int, k: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logp = torch.randn(tokens, k, generator=generator, dtype=torch.float64)
    mask = torch.rand(tokens, k, generator=generator) < 0.6
    weights = candidate_weights(logp, mask)
    assert (weights[~mask] == 0).all()
    torch.testing.assert_close(weights.sum(-1), mask.any(-1).to(torch.float64))


def test_values_outside_the_mask_reach_neither_loss_nor_gradient() -> None:
    logp = torch.tensor([[-1.0, -2.0]], requires_grad=True)
    mask = torch.tensor([[True, False]])
    loss, _ = distillation_loss(
        torch.where(mask, logp, torch.tensor(float("nan"))),
        torch.tensor([[-1.0, float("-inf")]]),
        torch.tensor([[-0.5, float("nan")]]),
        mask,
        (0.2, 0.28),
        1.0,
    )
    (grad,) = torch.autograd.grad(loss.sum(), logp)
    assert torch.isfinite(loss).all() and torch.isfinite(grad).all() and grad[0, 1] == 0


def test_configured_coefficients_reach_the_loss_or_the_start_fails() -> None:
    check_coefficients(ObjectiveConfig())
    check_coefficients(ObjectiveConfig(w_rl=0.3, anchor_coef=1.0, clamp=12.0, clip_low=0.9, clip_high=5.0, kl_coef=2.0))
    with pytest.raises(ConfigError, match=r"anchor_coef = 1\.0 does not reach the loss"):
        check_coefficients(ObjectiveConfig(anchor_coef=1.0, w_opd=0.0))
    with pytest.raises(ConfigError, match="clamp"):
        check_coefficients(ObjectiveConfig(clamp=2.0, w_opd=0.0))
    with pytest.raises(ConfigError, match="clip_high"):
        check_coefficients(ObjectiveConfig(clip_high=1.0, w_opd=0.0, w_rl=0.0))


@pytest.mark.parametrize(
    "wrong",
    [{"w_rl": -1.0}, {"clip_low": 1.0}, {"clamp": 0.0}, {"top_k": 0}, {"subset": "both"}, {"selection": "best"}],
)
def test_wrong_settings_are_named(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        ObjectiveConfig(**wrong)  # type: ignore[arg-type]


def test_a_huge_log_ratio_stays_finite() -> None:
    logp = torch.tensor([0.0], dtype=torch.float32, requires_grad=True)
    from libs.learning.ppo import clipped_surrogate

    loss, clipped = clipped_surrogate(logp, torch.tensor([-500.0]), torch.tensor([-1.0]), 0.2, 0.28)
    assert math.isfinite(float(loss.detach())) and float(clipped) == 0.0
