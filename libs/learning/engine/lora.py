"""LoRA adapters in peft's layout, fused for the decoder: y = x W^T + s (x A^T) B^T, equation 3 of arXiv 2106.09685.

They stay beside the base weights instead of being merged: scenarios share one base in memory, a batch may mix
adapters, and a new release starts serving by swapping a pointer while running sequences keep the old one.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from libs.errors import ConfigError
from libs.learning.engine.weights import ModelShape, Weights

_KEY = re.compile(
    r"^base_model\.model\.model\.layers\.(\d+)\.(?:self_attn|mlp)\.(\w+_proj)\.lora_([AB])(?:\.default)?\.weight$"
)
# which fused matrix a projection belongs to
_PARTS = {
    "qkv": ("q_proj", "k_proj", "v_proj"),
    "o": ("o_proj",),
    "gate_up": ("gate_proj", "up_proj"),
    "down": ("down_proj",),
}

# peft settings that change what an adapter computes, beyond equation 3
_OTHER_THAN_LORA = (
    "alora_invocation_tokens",
    "arrow_config",
    "bias",
    "kasa_config",
    "layer_replication",
    "lora_bias",
    "modules_to_save",
    "target_parameters",
    "trainable_token_indices",
    "use_bdlora",
    "use_dora",
    "use_qalora",
)


@dataclass(frozen=True, slots=True)
class Delta:
    """One low-rank update: add (x @ a) @ b. a is [in, rank], b is [rank, out] and holds the scale already."""

    a: Tensor
    b: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Lora:
    """An adapter: per layer the deltas of qkv, o, gate_up and down; None where the adapter leaves a matrix alone."""

    layers: tuple[dict[str, Delta | None], ...]
    bytes_held: int


def load_lora(directory: Path, weights: Weights, data: bytes | None = None) -> Lora:
    """Read a peft directory (adapter_config.json, adapter_model.safetensors; `data` may bring the latter's bytes).

    Raises ConfigError, with a reason, when the adapter uses something other than plain LoRA or does not fit the model.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load

    scale_of = _scales(directory)
    try:
        tensors = load(data if data is not None else (directory / "adapter_model.safetensors").read_bytes())
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"cannot read the adapter in {directory}: {error}", reason="weights_unreadable") from error
    found: dict[tuple[int, str, str], Tensor] = {}
    for key, tensor in tensors.items():
        match = _KEY.match(key)
        if match is None or int(match[1]) >= weights.shape.layers:
            raise ConfigError(f"{directory}: {key} does not fit this model", reason="adapter_unsupported")
        if not torch.isfinite(tensor).all():
            raise ConfigError(f"{directory}: {key} holds values that are not finite", reason="weights_not_finite")
        found[int(match[1]), match[2], match[3]] = tensor.to(torch.float32)
    layers: list[dict[str, Delta | None]] = []
    for index in range(weights.shape.layers):
        fused = {name: _fuse(index, parts, found, scale_of, weights, directory) for name, parts in _PARTS.items()}
        layers.append(fused)
    if found:
        raise ConfigError(f"{directory}: {sorted(found)[0]} is not a part of the model", reason="adapter_unsupported")
    held = sum(d.a.nbytes + d.b.nbytes for layer in layers for d in layer.values() if d is not None)
    return Lora(layers=tuple(layers), bytes_held=held)


def _scales(directory: Path) -> Any:
    """A function (layer, projection, rank) -> scale, from adapter_config.json."""
    path = directory / "adapter_config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {path}: {error}", reason="weights_unreadable") from error
    for field in _OTHER_THAN_LORA:
        if config.get(field) not in (None, False, "none", [], {}):
            raise ConfigError(f"{path}: {field} = {config[field]!r} is not supported", reason="adapter_unsupported")
    alphas: dict[str, float] = config.get("alpha_pattern") or {}

    def scale(layer: int, name: str, rank: int) -> float:
        module = (
            f"model.layers.{layer}.{'mlp' if name in ('gate_proj', 'up_proj', 'down_proj') else 'self_attn'}.{name}"
        )
        fits = (a for p, a in alphas.items() if re.match(rf"(.*\.)?({p})$", module))
        alpha = float(next(fits, config["lora_alpha"]))
        return alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)

    return scale


def _out_sizes(shape: ModelShape) -> dict[str, int]:
    return {
        "q_proj": shape.q_size,
        "k_proj": shape.kv_size,
        "v_proj": shape.kv_size,
        "o_proj": shape.hidden,
        "gate_proj": shape.intermediate,
        "up_proj": shape.intermediate,
        "down_proj": shape.hidden,
    }


def _in_size(shape: ModelShape, name: str) -> int:
    return {"o_proj": shape.q_size, "down_proj": shape.intermediate}.get(name, shape.hidden)


def _fuse(
    layer: int,
    parts: tuple[str, ...],
    found: dict[tuple[int, str, str], Tensor],
    scale_of: Any,
    weights: Weights,
    directory: Path,
) -> Delta | None:
    """Stack the A's of one fused matrix side by side and lay its B's out as blocks."""
    sizes = _out_sizes(weights.shape)
    downs: list[Tensor] = []
    blocks: list[tuple[int, Tensor]] = []  # column of the fused output, scaled B^T [rank, out]
    column = 0
    for name in parts:
        a, b = found.pop((layer, name, "A"), None), found.pop((layer, name, "B"), None)
        if (a is None) != (b is None):
            raise ConfigError(
                f"{directory}: layer {layer} {name} has only half of its pair", reason="weights_incomplete"
            )
        if a is not None and b is not None:
            rank = a.shape[0]
            if tuple(a.shape) != (rank, _in_size(weights.shape, name)) or tuple(b.shape) != (sizes[name], rank):
                raise ConfigError(f"{directory}: layer {layer} {name} has wrong shapes", reason="weights_shape")
            downs.append(a.t())
            blocks.append((column, b.t() * scale_of(layer, name, rank)))
        column += sizes[name]
    if not downs:
        return None
    a_all = torch.cat(downs, dim=1)
    b_all = torch.zeros(a_all.shape[1], column)
    row = 0
    for start, block in blocks:
        b_all[row : row + block.shape[0], start : start + block.shape[1]] = block
        row += block.shape[0]
    device, dtype = weights.device, weights.dtype
    return Delta(a=a_all.to(device, dtype).contiguous(), b=b_all.to(device, dtype).contiguous())
