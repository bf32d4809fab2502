"""Base weights of a Llama-family model, read from safetensors and fused for decoding.

Supported layouts: llama, mistral (without sliding window), qwen2, qwen3. Query, key and value projections become one
matrix, gate and up another: a decode step at small batch is bound by reading weights, and fewer, larger products cost
less than many small ones.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from libs.errors import ConfigError

SUPPORTED = ("llama", "mistral", "qwen2", "qwen3")
_FIXED_ROPE = ("default", "linear", "llama3", "yarn")  # their frequencies do not depend on the sequence's length

Reader = Callable[[str], Tensor | None]


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes in elements. `context` is the most tokens (prompt and reply) that positions are trained for."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    context: int
    norm_eps: float
    eos_ids: frozenset[int]

    @property
    def q_size(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.kv_heads * self.head_dim


@dataclass(frozen=True, slots=True)
class Layer:
    """One block. Matrices are [out, in] as torch.nn.Linear keeps them."""

    input_norm: Tensor
    qkv: Tensor  # [q_size + 2 * kv_size, hidden]
    qkv_bias: Tensor | None
    q_norm: Tensor | None  # [head_dim]
    k_norm: Tensor | None
    o: Tensor  # [hidden, q_size]
    post_norm: Tensor
    gate_up: Tensor  # [2 * intermediate, hidden]
    down: Tensor  # [hidden, intermediate]


@dataclass(frozen=True, slots=True, eq=False)
class Weights:
    """A whole model. `cos` and `sin` are [context, head_dim], in the layout of rotate-half rotary embeddings."""

    shape: ModelShape
    embed: Tensor  # [vocab, hidden]
    layers: tuple[Layer, ...]
    norm: Tensor
    head: Tensor  # [vocab, hidden]; the embedding itself where they are tied
    cos: Tensor
    sin: Tensor

    @property
    def device(self) -> torch.device:
        return self.embed.device

    @property
    def dtype(self) -> torch.dtype:
        return self.embed.dtype


def read_shape(directory: Path) -> tuple[ModelShape, Any]:
    """The sizes from config.json, and the transformers config. Raises ConfigError for a model it cannot run."""
    from transformers import AutoConfig

    if not (directory / "config.json").exists():
        raise ConfigError(f"no model at {directory} (config.json is missing); run `make setup` or fix the path")
    config = AutoConfig.from_pretrained(str(directory))
    kind = config.model_type
    if kind not in SUPPORTED:
        raise ConfigError(f"{directory}: model_type {kind!r} is not one of {', '.join(SUPPORTED)}; serve it with vLLM")
    if getattr(config, "use_sliding_window", kind == "mistral") and getattr(config, "sliding_window", None):
        raise ConfigError(f"{directory}: sliding-window attention is not supported; serve it with vLLM")
    if config.hidden_act != "silu" or getattr(config, "mlp_bias", False):
        raise ConfigError(f"{directory}: only silu MLPs without bias are supported; serve it with vLLM")
    rope = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    if rope not in _FIXED_ROPE:
        raise ConfigError(f"{directory}: rope_type {rope!r} is not one of {', '.join(_FIXED_ROPE)}")
    heads = config.num_attention_heads
    return (
        ModelShape(
            layers=config.num_hidden_layers,
            hidden=config.hidden_size,
            heads=heads,
            kv_heads=getattr(config, "num_key_value_heads", None) or heads,
            head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
            intermediate=config.intermediate_size,
            vocab=config.vocab_size,
            context=config.max_position_embeddings,
            norm_eps=config.rms_norm_eps,
            eos_ids=_eos_ids(directory, config),
        ),
        config,
    )


def _eos_ids(directory: Path, config: Any) -> frozenset[int]:
    """End tokens from generation_config.json, which lists all of them, else from the config."""
    found: Any = config.eos_token_id
    path = directory / "generation_config.json"
    if path.exists():
        found = json.loads(path.read_text(encoding="utf-8")).get("eos_token_id", found)
    return frozenset([found] if isinstance(found, int) else found or [])


def load_weights(
    directory: Path, *, dtype: torch.dtype = torch.float32, device: str = "cpu", context: int | None = None
) -> Weights:
    """Read a model directory. `context` (tokens) may cut the model's own limit, never stretch it.

    Raises ConfigError, naming the file or tensor, when something is missing, misshapen or not finite.
    """
    shape, config = read_shape(directory)
    if context is not None and context < shape.context:
        from dataclasses import replace

        shape = replace(shape, context=context)
    read = _reader(directory, dtype, device)

    def need(name: str, *size: int) -> Tensor:
        tensor = read(name)
        if tensor is None:
            raise ConfigError(f"{directory}: tensor {name} is missing", reason="weights_incomplete")
        if tuple(tensor.shape) != size:
            raise ConfigError(f"{directory}: {name} is {tuple(tensor.shape)}, expected {size}", reason="weights_shape")
        if not torch.isfinite(tensor.sum(dtype=torch.float64)):
            raise ConfigError(f"{directory}: {name} holds values that are not finite", reason="weights_not_finite")
        return tensor

    embed = need("model.embed_tokens.weight", shape.vocab, shape.hidden)
    tied = bool(getattr(config, "tie_word_embeddings", False))
    cos, sin = _rotary(config, shape.context, dtype, device)
    return Weights(
        shape=shape,
        embed=embed,
        layers=tuple(_layer(need, read, shape, index) for index in range(shape.layers)),
        norm=need("model.norm.weight", shape.hidden),
        head=embed if tied else need("lm_head.weight", shape.vocab, shape.hidden),
        cos=cos,
        sin=sin,
    )


def _layer(need: Callable[..., Tensor], read: Reader, shape: ModelShape, index: int) -> Layer:
    at = f"model.layers.{index}."
    attn, mlp = at + "self_attn.", at + "mlp."
    sizes = {"q_proj": shape.q_size, "k_proj": shape.kv_size, "v_proj": shape.kv_size}
    biases = [read(f"{attn}{name}.bias") for name in sizes]
    present = [bias for bias in biases if bias is not None]
    if present and len(present) < len(biases):
        raise ConfigError(f"{attn}: some of q, k and v have a bias and some have none", reason="weights_incomplete")
    if read(f"{attn}o_proj.bias") is not None:
        raise ConfigError(f"{attn}o_proj.bias is not supported; serve this model with vLLM")
    return Layer(
        input_norm=need(at + "input_layernorm.weight", shape.hidden),
        qkv=torch.cat([need(f"{attn}{name}.weight", size, shape.hidden) for name, size in sizes.items()]),
        qkv_bias=torch.cat(present) if present else None,
        q_norm=read(attn + "q_norm.weight"),
        k_norm=read(attn + "k_norm.weight"),
        o=need(attn + "o_proj.weight", shape.hidden, shape.q_size),
        post_norm=need(at + "post_attention_layernorm.weight", shape.hidden),
        gate_up=torch.cat(
            [need(f"{mlp}{n}.weight", shape.intermediate, shape.hidden) for n in ("gate_proj", "up_proj")]
        ),
        down=need(mlp + "down_proj.weight", shape.hidden, shape.intermediate),
    )


def weight_files(directory: Path) -> list[Path]:
    """The safetensors files of a full model, in name order. Raises ConfigError when there are none."""
    index = directory / "model.safetensors.index.json"
    if index.exists():
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        return [directory / name for name in names]
    single = directory / "model.safetensors"
    if not single.exists():
        raise ConfigError(f"no model.safetensors in {directory}", reason="weights_missing")
    return [single]


def _reader(directory: Path, dtype: torch.dtype, device: str) -> Reader:
    """Reads one tensor by name; None where no file holds it."""
    from safetensors import SafetensorError, safe_open

    where: dict[str, Any] = {}
    for path in weight_files(directory):
        try:
            handle: Any = safe_open(str(path), framework="pt", device="cpu")
        except (OSError, SafetensorError) as error:
            raise ConfigError(f"cannot read {path}: {error}", reason="weights_unreadable") from error
        where |= dict.fromkeys(handle.keys(), handle)

    def read(name: str) -> Tensor | None:
        handle = where.get(name)
        # clone: the pages behind safe_open belong to the file, which a later clean-up may truncate
        return None if handle is None else handle.get_tensor(name).to(device=device, dtype=dtype, copy=True)

    return read


def _rotary(config: Any, context: int, dtype: torch.dtype, device: str) -> tuple[Tensor, Tensor]:
    """cos and sin of every position, from transformers' own frequencies, computed in float32 as it does."""
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    rotary = LlamaRotaryEmbedding(config)
    angles = torch.outer(torch.arange(context, dtype=torch.float32), rotary.inv_freq.float())
    angles = torch.cat((angles, angles), dim=-1)
    scale = float(rotary.attention_scaling)
    return (angles.cos() * scale).to(device, dtype), (angles.sin() * scale).to(device, dtype)
