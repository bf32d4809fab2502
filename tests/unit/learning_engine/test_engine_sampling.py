"""What the sampler draws and what it reports, against plain log_softmax and counting."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.learning.engine.sampling import Row, Sampling, draw

VOCAB = 700  # three blocks, the last one incomplete


def row(uniform: float = 0.5, generated: Counter[int] | None = None, **settings_: object) -> Row:
    return Row(Sampling(**settings_), uniform, generated or Counter())  # type: ignore[arg-type]


def logits(rows: int = 1, scale: float = 2.0, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(seed)) * scale


def quantile(probs: torch.Tensor, uniform: float) -> int:
    """The plain definition: the first token at which the cumulative probability exceeds `uniform`."""
    return int((probs.double().cumsum(0) / probs.double().sum() > uniform).int().argmax())


@given(uniform=st.floats(0, 0.999999), temperature=st.floats(0.1, 2.0), seed=st.integers(0, 50))
@settings(max_examples=60, deadline=None)
def test_plain_sampling_inverts_the_distribution(uniform: float, temperature: float, seed: int) -> None:
    values = logits(seed=seed)
    (drawn,) = draw(values, [row(uniform, temperature=temperature)])
    assert drawn is not None
    probs = (values[0] / temperature).softmax(0)
    near = {quantile(probs, min(max(uniform + d, 0), 1 - 1e-9)) for d in (-1e-6, 0, 1e-6)}
    assert drawn.token in near


def test_frequencies_follow_the_probabilities() -> None:
    values = logits(scale=3.0)
    n = 5_000
    drawn = draw(values.expand(n, -1), [row((i + 0.5) / n, temperature=1.0) for i in range(n)])
    counts = Counter(d.token for d in drawn if d)
    probs = values[0].softmax(0)
    assert sum(abs(counts[t] / n - float(probs[t])) for t in range(VOCAB)) < 0.02


@pytest.mark.parametrize("top_p", [0.1, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("scale", [0.01, 1.0, 5.0])
def test_top_p_draws_from_the_smallest_set_that_reaches_it(top_p: float, scale: float) -> None:
    """Scale 0.01 is almost flat: the set is larger than the candidates that are looked at first."""
    values = logits(scale=scale)
    ordered, ids = values[0].double().softmax(0).sort(descending=True)
    size = int((ordered.cumsum(0) < top_p).sum()) + 1
    allowed, n = set(ids[:size].tolist()), 600
    drawn = draw(values.expand(n, -1), [row((i + 0.5) / n, top_p=top_p) for i in range(n)])
    seen = Counter(d.token for d in drawn if d)
    assert set(seen) <= allowed
    # evenly spaced uniforms meet each token's share of the kept mass to within one draw at either end
    shares = dict(zip(ids[:size].tolist(), (ordered[:size] / ordered[:size].sum()).tolist(), strict=True))
    assert all(abs(seen[token] / n - share) <= 2.1 / n for token, share in shares.items())


def test_top_k_and_top_p_bound_together() -> None:
    values = logits()
    best = set(values[0].topk(3).indices.tolist())
    drawn = draw(values.expand(300, -1), [row((i + 0.5) / 300, top_k=3) for i in range(300)])
    assert {d.token for d in drawn if d} == best


def test_rows_of_every_kind_share_a_batch() -> None:
    values = logits(4)
    kinds = [row(temperature=0.0), row(0.3, top_p=0.9), row(0.3, temperature=0.7), row(0.3, top_k=2, captured=2)]
    together = draw(values, kinds)
    assert together == [draw(values[i : i + 1], [kind])[0] for i, kind in enumerate(kinds)]
    assert together[0] is not None
    assert together[0].token == int(values[0].argmax())


def test_what_is_reported_is_the_model_at_temperature_1_whatever_the_sampler_does() -> None:
    values = logits()
    full = values[0].log_softmax(0)
    for kind in (
        row(temperature=0.3, captured=4),
        row(0.9, top_p=0.5, captured=4),
        row(0.2, Counter({1: 3}), presence_penalty=2.0, frequency_penalty=1.0, logit_bias={5: 50.0}, captured=4),
    ):
        (drawn,) = draw(values, [kind])
        assert drawn is not None
        assert math.isclose(drawn.logprob, float(full[drawn.token]), abs_tol=1e-5)
        best = full.topk(4)
        assert drawn.top_ids == best.indices.tolist()
        assert drawn.top_logprobs == pytest.approx(best.values.tolist(), abs=1e-5)


def test_penalties_and_biases_move_the_choice() -> None:
    values = logits()
    best, second = values[0].topk(2).indices.tolist()
    seen = Counter({best: 2})
    gap = float(values[0, best] - values[0, second])
    assert gap < 2 * 2 + 2, "the case must be one in which the penalties suffice"
    for settings_ in ({"frequency_penalty": 2.0, "presence_penalty": 2.0}, {"logit_bias": {best: -100.0}}):
        (drawn,) = draw(values, [row(0.5, seen, temperature=0.0, **settings_)])
        assert drawn is not None
        assert drawn.token == second
    (drawn,) = draw(values, [row(0.5, Counter(), temperature=0.0, frequency_penalty=2.0, presence_penalty=2.0)])
    assert drawn is not None
    assert drawn.token == best, "nothing was generated yet, so nothing is penalised"


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_rows_without_numbers_give_none_and_leave_the_others_alone(bad: float) -> None:
    values = logits(2)
    values[0] = bad
    drawn = draw(values, [row(), row()])
    assert drawn[0] is None
    assert drawn[1] == draw(values[1:], [row()])[0]


def test_a_token_without_probability_is_never_drawn() -> None:
    values = torch.full((1, VOCAB), float("-inf"))
    values[0, 300] = 0.0
    for uniform in (0.0, 0.5, 1 - 1e-12):
        (drawn,) = draw(values, [row(uniform)])
        assert drawn is not None
        assert drawn.token == 300
