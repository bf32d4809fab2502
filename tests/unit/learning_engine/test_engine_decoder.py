"""The lean decoder gives transformers' log-probabilities: per architecture, per adapter, in pieces and in batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from libs.errors import ConfigError
from libs.learning.engine.engine import Limits
from libs.learning.engine.weights import load_weights
from tests.tiny_model import write_model
from tests.unit.learning_engine.support import Bench, expected, logprobs, write_adapter

CLOSE = 2e-5  # nats; float32 products in another order
PROMPTS = [list(b"Tell me of plastic."), list(b"Hi"), list(range(40, 140))]
SIZES: dict[str, Any] = {
    "vocab_size": 256,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
    "eos_token_id": 0,
    "initializer_range": 0.2,
}
MODELS = {
    "multi_head": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, num_key_value_heads=4)),
    "wide_heads": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, num_key_value_heads=1, head_dim=16)),
    "llama3_rope": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, num_key_value_heads=2, rope_parameters=_LLAMA3)),
    "mistral": lambda: MistralForCausalLM(MistralConfig(**SIZES, num_key_value_heads=2, sliding_window=None)),
    "qwen2_bias": lambda: _biased(Qwen2ForCausalLM(Qwen2Config(**SIZES, num_key_value_heads=2))),
    "qwen3_norms": lambda: _biased(Qwen3ForCausalLM(Qwen3Config(**SIZES, num_key_value_heads=2, head_dim=16))),
}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def _biased(model: Any) -> Any:
    """Biases and norms away from their neutral start, so that forgetting one shows."""
    for name, parameter in model.named_parameters():
        if name.endswith("bias") or "norm" in name:
            torch.nn.init.normal_(parameter, mean=0.6, std=0.3)
    return model


def check(model_dir: Path, bench: Bench, adapters: dict[str, Path] | None = None) -> None:
    """Every reply of a mixed batch agrees with transformers, sampled token and candidates alike."""
    for sequence, steps in bench.run().items():
        adapter = (adapters or {}).get(sequence.request.release.release_id)
        tokens, rows = expected(model_dir, sequence, adapter)
        torch.testing.assert_close(torch.tensor(logprobs(steps)), tokens, atol=CLOSE, rtol=0)
        top = torch.tensor([step.drawn.top_logprobs for step in steps if step.drawn])
        torch.testing.assert_close(top, rows.topk(4).values, atol=CLOSE, rtol=0)


@pytest.mark.parametrize("name", MODELS)
def test_every_architecture_agrees_with_transformers(name: str, tmp_path: Path) -> None:
    torch.manual_seed(1)
    MODELS[name]().save_pretrained(tmp_path)
    bench = Bench(tmp_path)
    for prompt in PROMPTS:
        bench.ask(prompt)
    check(tmp_path, bench)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("piece", [1, 7, 64])
def test_prompts_computed_in_pieces_beside_running_replies(tmp_path: Path, tied: bool, piece: int) -> None:
    model_dir = write_model(tmp_path, tied=tied)
    limits = Limits(prefill_tokens=piece, prefill_tokens_alone=piece, prefix_budget_tokens=0)
    bench = Bench(model_dir, limits)
    for prompt in PROMPTS:
        bench.ask(prompt, max_new_tokens=20)
        bench.step()
    check(model_dir, bench)


def test_adapters_and_base_share_a_batch_and_never_mix(model_dir: Path, tmp_path: Path) -> None:
    adapters = {name: write_adapter(model_dir, tmp_path / name, seed=i) for i, name in enumerate(("anna", "ben"))}
    bench = Bench(model_dir)
    releases = [bench.base, *(bench.release(name, adapter) for name, adapter in adapters.items())]
    sequences = [bench.ask(PROMPTS[i % 2], releases[i % 3]) for i in range(9)]
    check(model_dir, bench, {name: tmp_path / name for name in adapters})
    replies = {s.request.release.release_id: tuple(s.generated) for s in sequences if s.prompt.tolist() == PROMPTS[0]}
    assert len(set(replies.values())) == 3, "the adapters must be strong enough to tell a mix-up"


@pytest.mark.parametrize(
    "config",
    [
        {"target_modules": ["q_proj", "down_proj"]},
        {"use_rslora": True},
        {"r": 3, "lora_alpha": 5, "alpha_pattern": {"v_proj": 11}},
        {"rank_pattern": {"up_proj": 2}, "target_modules": ["gate_proj", "up_proj", "k_proj", "o_proj"]},
        {"layers_to_transform": [1], "target_modules": ["q_proj", "o_proj", "up_proj"]},
    ],
    ids=str,
)
def test_adapter_settings_agree_with_peft(model_dir: Path, tmp_path: Path, config: dict[str, Any]) -> None:
    adapter = write_adapter(model_dir, tmp_path / "a", seed=3, **config)
    bench = Bench(model_dir)
    bench.ask(PROMPTS[0], bench.release("a", adapter))
    check(model_dir, bench, {"a": tmp_path / "a"})


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}, "model_type 'gpt2'"),
        ({"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}, "rope_type 'dynamic'"),
        ({"hidden_act": "gelu"}, "silu"),
    ],
)
def test_models_that_it_cannot_run_are_refused_by_name(tmp_path: Path, change: dict[str, Any], says: str) -> None:
    import json

    path = write_model(tmp_path) / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ConfigError, match=says):
        load_weights(tmp_path)


def test_missing_model_names_the_path_and_the_fix(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="make setup"):
        load_weights(tmp_path / "nowhere")
