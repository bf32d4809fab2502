"""One step over a real (tiny) model: packing changes nothing, the gradient is the reference's, bad input is safe."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.learning.model import ModelConfig, Policy, load_policy
from libs.learning.objective import ObjectiveConfig
from libs.learning.packing import common_prefix, pack, plan_packs
from libs.learning.reference import DenseSample, reference_loss
from libs.learning.samples import Limits, TrainSample, admit
from libs.learning.update import StepConfig, accumulate, run_step
from tests.tiny_model import VOCAB, write_model

torch.set_num_threads(1)
LIMITS = Limits(max_tokens=512, vocab_size=VOCAB)


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(params=["lora", "full"])
def policy(request: pytest.FixtureRequest, model_dir: Path) -> Policy:
    return exact(model_dir, request.param)


def exact(model_dir: Path, mode: str) -> Policy:
    """In float64, and moved away from the base, so that base and student differ."""
    made, _ = load_policy(ModelConfig(path=model_dir, mode=mode, lora_rank=4, lora_alpha=8))  # type: ignore[arg-type]
    made.causal.double()
    if made._base is not None:
        made._base.double()
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for p in made.named_trainable().values():
            p.add_(0.05 * torch.randn(p.shape, generator=generator, dtype=p.dtype))
    return made


def turn(
    name: str,
    *,
    seed: int,
    hints: int = 1,
    tokens: int = 6,
    reward: float = -1.0,
    weight: float = 1.0,
    prompt: int = 12,
) -> TrainSample:
    """Prompts of one seed family share their first half."""
    rng = np.random.default_rng(seed)
    opening = tuple(range(10, 10 + prompt))
    own = tuple(int(i) for i in rng.integers(0, VOCAB, 4))
    top = np.stack([rng.permutation(VOCAB)[:4] for _ in range(tokens)])
    return TrainSample(
        feedback_id=name,
        prompt_ids=opening + own,
        response_ids=tuple(int(i) for i in rng.integers(0, VOCAB, tokens)),
        topk_ids=top,
        captured_logp=np.zeros(tokens, np.float32),
        hint_prompts=tuple(opening + own + tuple(range(50, 53 + h)) for h in range(hints)),
        reward=reward,
        weight=weight,
    )


BATCH = (
    turn("a", seed=1),
    turn("b", seed=2, hints=3, tokens=9),
    turn("c", seed=3, hints=0, tokens=1, reward=1.0, weight=0.3),
    turn("d", seed=1, hints=2, reward=0.0),
)


def logits_of(policy: Policy, prompt: tuple[int, ...], response: tuple[int, ...], *, base: bool) -> torch.Tensor:
    """The logits before each response token, from the model's own attention on this sequence alone."""
    ids = torch.tensor([[*prompt, *response[:-1]]])
    with policy._as(base) as causal:
        causal.set_attn_implementation("eager")
        out = causal(ids, use_cache=False).logits[0, len(prompt) - 1 :]
        causal.set_attn_implementation("clawback_packed")
    return out


def dense(policy: Policy, s: TrainSample) -> DenseSample:
    student = logits_of(policy, s.prompt_ids, s.response_ids, base=False)
    with torch.no_grad():
        base = logits_of(policy, s.prompt_ids, s.response_ids, base=True)
        teachers = [logits_of(policy, p, s.response_ids, base=True) for p in s.hint_prompts]
    return DenseSample(
        student_logits=student,
        old_logits=student.detach(),
        base_logits=base,
        teacher_logits=teachers,
        hint_lengths=[len(p) for p in s.hint_prompts],
        response_ids=s.response_ids,
        captured_ids=s.topk_ids.tolist(),
        reward=s.reward,
        weight=s.weight,
    )


@pytest.mark.parametrize("step", [StepConfig(), StepConfig(chunk_rows=3, pack_tokens=30, share_prefixes=False)])
def test_the_gradient_of_the_weights_equals_the_references(policy: Policy, step: StepConfig) -> None:
    config = ObjectiveConfig(anchor_coef=0.7, kl_coef=0.4)
    want = reference_loss([dense(policy, s) for s in BATCH], config)
    params = policy.named_trainable()
    want_grads = torch.autograd.grad(want, list(params.values()))
    loss, metrics, logp = accumulate(policy, BATCH, config, step)
    assert loss == pytest.approx(float(want.detach()), rel=1e-6)
    for (name, p), grad in zip(params.items(), want_grads, strict=True):
        assert p.grad is not None, name
        # Llama's norms and rotary embedding compute in float32 whatever the weights are: no closer than that.
        torch.testing.assert_close(p.grad, grad, atol=1e-6, rtol=1e-4, msg=lambda m, name=name: f"{name}: {m}")
    used = {n.removeprefix("coef_"): v for n, v in metrics.items() if n.startswith("coef_")}
    assert used == {
        "w_rl": 1.0,
        "w_opd": 1.0,
        "kl_coef": 0.4,
        "anchor_coef": 0.7,
        "clip_low": 0.2,
        "clip_high": 0.28,
        "clamp": 1.0,
        "top_k": 4.0,
    }
    for s in BATCH:
        direct = logits_of(policy, s.prompt_ids, s.response_ids, base=False).log_softmax(-1)
        want_logp = direct.gather(1, torch.tensor(s.response_ids).unsqueeze(1)).squeeze(1)
        assert logp[s.feedback_id] == pytest.approx(want_logp.tolist(), abs=1e-5)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=40), min_size=1, max_size=6), st.integers(0, 2**31))
def test_a_pack_equals_each_sequence_alone(tmp: Path, sequences: list[list[int]], seed: int) -> None:
    """Two symbols and a common opening, so that prefixes are shared in every way, whole sequences too."""
    policy = CACHE.setdefault("lora", exact(tmp, "lora"))
    opening = list(range(20, 20 + seed % 12))
    sequences = [opening + s for s in sequences]
    weights = [torch.randn(len(s), 32, dtype=torch.float64) for s in sequences]
    grads = []
    for share in (True, False):
        layout = pack(sequences, share=share)
        assert layout.unshared_tokens == sum(map(len, sequences))
        assert layout.tokens <= layout.unshared_tokens
        hidden = policy.hidden(layout)
        outs = [hidden[torch.from_numpy(r)] for r in layout.rows]
        loss = sum((o * w).sum() for o, w in zip(outs, weights, strict=True))
        grads.append(torch.autograd.grad(loss, list(policy.named_trainable().values())))
        if share:
            packed = [o.detach() for o in outs]
    for s, got in zip(sequences, packed, strict=True):
        policy.causal.set_attn_implementation("eager")
        alone = policy.causal.base_model(torch.tensor([s]), use_cache=False).last_hidden_state[0]
        policy.causal.set_attn_implementation("clawback_packed")
        torch.testing.assert_close(got, alone.detach(), atol=1e-6, rtol=1e-6)
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b, atol=2e-5, rtol=1e-4)


CACHE: dict[str, Policy] = {}


@pytest.fixture(scope="module")
def tmp(model_dir: Path) -> Path:
    return model_dir


def test_packs_keep_every_sequence_once_and_hold_the_bound() -> None:
    rng = np.random.default_rng(0)
    sequences = [rng.integers(0, 3, rng.integers(1, 50)).tolist() for _ in range(30)]
    packs = plan_packs(sequences, 60)
    assert sorted(i for p in packs for i in p) == list(range(30))
    assert all(sum(len(sequences[i]) for i in p) <= 60 for p in packs)
    assert plan_packs([[1] * 100], 60) == [[0]]


def test_common_prefix() -> None:
    a = np.array([1, 2, 3])
    assert [common_prefix(a, np.array(b)) for b in ([1, 2, 3], [1, 2], [1, 9, 3], [4])] == [3, 2, 1, 0]


def test_sharing_saves_the_common_tokens(model_dir: Path) -> None:
    policy = exact(model_dir, "lora")
    _, metrics, _ = accumulate(policy, BATCH, ObjectiveConfig(), StepConfig())
    assert metrics["student_tokens"] < metrics["student_tokens_unshared"] - 20


@pytest.mark.parametrize("mode", ["lora", "full"])
def test_a_step_lowers_the_loss_it_was_taken_for(model_dir: Path, mode: str) -> None:
    policy = exact(model_dir, mode)
    optimizer = torch.optim.AdamW(policy.named_trainable().values(), lr=1e-3, weight_decay=0.0)
    batch = [turn("x", seed=9, hints=0)]
    before = run_step(policy, optimizer, batch, ObjectiveConfig(), StepConfig()).logp["x"]
    after = run_step(policy, optimizer, batch, ObjectiveConfig(), StepConfig()).logp["x"]
    assert sum(after) < sum(before)  # it was rejected


@pytest.mark.parametrize("where", ["loss", "gradient"])
def test_a_step_that_is_not_finite_changes_nothing(
    model_dir: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = exact(model_dir, "lora")
    optimizer = torch.optim.AdamW(policy.named_trainable().values(), lr=1e-3)
    assert run_step(policy, optimizer, BATCH, ObjectiveConfig(), StepConfig()).applied
    if where == "loss":
        poisoned = policy.head
        monkeypatch.setattr(policy, "head", lambda h, base=False: poisoned(h, base=base) * float("nan"))
    else:
        last = list(policy.named_trainable().values())[-1]
        last.register_hook(lambda g: g * float("inf"))
    before = {n: t.clone() for n, t in policy.state().items()}
    moments = [t.clone() for s in optimizer.state.values() for t in s.values()]
    result = run_step(policy, optimizer, BATCH, ObjectiveConfig(), StepConfig())
    assert (result.applied, result.reason) == (False, f"not_finite_{where}")
    for name, tensor in policy.state().items():
        assert torch.equal(tensor, before[name]), name
    for a, b in zip((t for s in optimizer.state.values() for t in s.values()), moments, strict=True):
        assert torch.equal(a, b)


def test_activation_checkpointing_changes_no_gradient(model_dir: Path) -> None:
    grads = []
    for on in (False, True):
        made, _ = load_policy(ModelConfig(path=model_dir, lora_rank=4, lora_alpha=8, checkpoint_activations=on))
        generator = torch.Generator().manual_seed(5)
        with torch.no_grad():
            for p in made.named_trainable().values():
                p.add_(0.05 * torch.randn(p.shape, generator=generator))
        accumulate(made, BATCH, ObjectiveConfig(), StepConfig())
        grads.append([p.grad for p in made.named_trainable().values()])
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-5)


def test_what_cannot_be_trained_leaves_with_a_reason() -> None:
    good = turn("good", seed=1)
    samples = [
        good,
        replace(good, feedback_id="no_response", response_ids=()),
        replace(good, feedback_id="no_prompt", prompt_ids=()),
        replace(good, feedback_id="nan", reward=float("nan")),
        replace(good, feedback_id="weightless", weight=0.0),
        replace(good, feedback_id="vocabulary", response_ids=(VOCAB,) * 6),
        replace(good, feedback_id="long", prompt_ids=(1,) * 600),
        replace(good, feedback_id="ragged", topk_ids=good.topk_ids[:-1]),
        replace(good, feedback_id="long_hint", hint_prompts=((1,) * 600,)),
        replace(good, feedback_id="one_long_hint", hint_prompts=((1,) * 600, (1, 2))),
    ]
    kept, dropped, lost_hints = admit(samples, LIMITS)
    assert [s.feedback_id for s in kept] == ["good", "one_long_hint"]
    assert kept[1].hint_prompts == ((1, 2),) and lost_hints == 1
    assert dropped == {
        "no_response": "empty",
        "no_prompt": "empty",
        "nan": "not_finite",
        "weightless": "not_finite",
        "vocabulary": "vocabulary",
        "long": "too_long",
        "ragged": "ragged",
        "long_hint": "hint_too_long",
    }


def test_no_candidates_at_all_leaves_the_other_terms(model_dir: Path) -> None:
    policy = exact(model_dir, "lora")
    bare = replace(turn("a", seed=1), topk_ids=np.zeros((6, 0), dtype=np.int64))
    with_opd, _, _ = accumulate(policy, [bare], ObjectiveConfig(), StepConfig())
    without, _, _ = accumulate(policy, [bare], ObjectiveConfig(w_opd=0.0), StepConfig())
    assert with_opd == pytest.approx(without)


@pytest.mark.parametrize("mode", ["lora", "full"])
def test_bfloat16_products_take_the_same_direction(model_dir: Path, mode: str) -> None:
    """The GPU setting, run on the CPU: trainable weights stay float32, the gradient points the same way."""
    grads = []
    for dtype in ("float32", "bfloat16"):
        made, _ = load_policy(
            ModelConfig(path=model_dir, mode=mode, lora_rank=4, lora_alpha=8, dtype=dtype)  # type: ignore[arg-type]
        )
        generator = torch.Generator().manual_seed(5)
        with torch.no_grad():
            for p in made.named_trainable().values():
                assert p.dtype == torch.float32
                p.add_(0.05 * torch.randn(p.shape, generator=generator))
        accumulate(made, BATCH, ObjectiveConfig(), StepConfig())
        grads.append(torch.cat([p.grad.flatten() for p in made.named_trainable().values() if p.grad is not None]))
    assert torch.nn.functional.cosine_similarity(grads[0], grads[1], dim=0) > 0.98
