"""The policy under training and its frozen base, behind one small surface: hidden states, head, trainable tensors.

LoRA: base and student share every weight; the base is the student with its adapter switched off.
Full: the base is a second, frozen copy, which doubles the memory for weights.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from peft import LoraConfig, get_peft_model
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer

from libs.errors import ConfigError
from libs.learning.packing import ATTENTION, Layout
from libs.learning.scale import fill, shard_layers, whole, world

Mode = Literal["lora", "full"]
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """`dtype` is that of the frozen weights and of the products; trainable LoRA weights stay float32."""

    path: Path
    mode: Mode = "lora"
    lora_rank: int = 32
    lora_alpha: int = 64
    dtype: Literal["float32", "bfloat16"] = "float32"
    device: str = "cpu"
    seed: int = 0  # of the adapter's first weights
    checkpoint_activations: bool = False


class Policy:
    """One model; `state` and `load` move the trainable tensors of a scenario out and in."""

    def __init__(self, model: Any, config: ModelConfig) -> None:
        self.config = config
        _refuse_unsupported(model.config)
        model.config.use_cache = False
        self.causal: Any
        if config.mode == "lora":
            torch.manual_seed(config.seed)
            for parameter in model.parameters():
                parameter.requires_grad_(False)
            lora = LoraConfig(
                r=config.lora_rank,
                lora_alpha=config.lora_alpha,
                target_modules="all-linear",
                lora_dropout=0.0,
                bias="none",
                task_type="CAUSAL_LM",
            )
            self.peft: Any = get_peft_model(model, lora)
            self.causal, self._base = self.peft.get_base_model(), None
            self._adapted: list[Any] = [m for m in self.causal.modules() if isinstance(m, BaseTunerLayer)]
        else:
            self.peft, self.causal = None, model
            self._base = copy.deepcopy(model).requires_grad_(False).eval()
        if config.checkpoint_activations:
            self.causal.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        # transformers checkpoints activations only in train mode; there is no dropout, so the mode changes no value.
        self.causal.train(config.checkpoint_activations)
        if world()[1] > 1:
            shard_layers(self.causal)
            if self._base is not None:
                shard_layers(self._base)
        self.vocab_size = int(self.causal.config.vocab_size)
        self.context_tokens = int(self.causal.config.max_position_embeddings)

    @property
    def device(self) -> torch.device:
        found: torch.device = next(self.causal.parameters()).device
        return found

    def frozen_base(self) -> Any:
        """The transformers model whose weights never train."""
        return self.causal if self._base is None else self._base

    def named_trainable(self) -> dict[str, nn.Parameter]:
        """Trainable parameters by the name under which peft (LoRA) or transformers (full) saves them."""
        if self.peft is None:
            return {n: p for n, p in self.causal.named_parameters() if p.requires_grad}
        return {n.replace(".default", ""): p for n, p in self.peft.named_parameters() if p.requires_grad}

    def state(self) -> dict[str, Tensor]:
        """A copy of the trainable tensors, on the CPU."""
        return {n: whole(p) for n, p in self.named_trainable().items()}

    def load(self, state: dict[str, Tensor]) -> None:
        """Put a scenario's tensors in place. Raises ConfigError when names or shapes are not this model's."""
        own = self.named_trainable()
        if own.keys() != state.keys() or any(own[n].shape != t.shape for n, t in state.items()):
            raise ConfigError("the checkpoint's tensors are not this model's; check trainer_model, mode and lora_rank")
        for name, tensor in state.items():
            fill(own[name], tensor)

    @contextlib.contextmanager
    def _as(self, base: bool) -> Iterator[Any]:
        if not base:
            yield self.causal
        elif self._base is not None:
            yield self._base
        else:
            # peft's own disable_adapter() also flips requires_grad, which FSDP2 reads only once, at the first pass.
            for layer in self._adapted:
                layer._disable_adapters = True
            try:
                yield self.causal
            finally:
                for layer in self._adapted:
                    layer._disable_adapters = False

    def hidden(self, layout: Layout, *, base: bool = False) -> Tensor:
        """The last hidden states [L, D] of a pack. `base` runs the frozen base, to be called without gradient."""
        with self._as(base) as causal, self.autocast():
            out = causal.base_model(
                input_ids=layout.input_ids, position_ids=layout.position_ids, use_cache=False, packed_layout=layout
            )
        hidden: Tensor = out.last_hidden_state[0]
        return hidden

    def head(self, hidden: Tensor, *, base: bool = False) -> Tensor:
        """Logits [C, V] of hidden states [C, D], soft-capped where the architecture does so."""
        causal: Any = self._base if base and self._base is not None else self.causal
        with self.autocast():
            logits: Tensor = causal.get_output_embeddings()(hidden)
        cap = getattr(causal.config, "final_logit_softcapping", None)
        return torch.tanh(logits.float() / cap) * cap if cap else logits

    def head_params(self) -> list[Tensor]:
        """Trainable parameters of the head (none under LoRA)."""
        return [p for p in self.causal.get_output_embeddings().parameters() if p.requires_grad]

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        on = self.config.dtype == "bfloat16"
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=on)


def _refuse_unsupported(config: Any) -> None:
    """Raise ConfigError for what packed attention or the chunked head would silently get wrong."""
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    if kinds != {"full_attention"}:
        raise ConfigError(f"{config.model_type}: layers of kind {sorted(kinds)} are not supported, only full attention")
    for name in ("attn_logit_softcapping", "logit_scale", "logits_scaling", "attention_dropout"):
        if getattr(config, name, None) not in (None, 0, 0.0, 1, 1.0):
            raise ConfigError(f"{config.model_type}: {name} = {getattr(config, name)} is not supported")


def load_policy(config: ModelConfig) -> tuple[Policy, Any]:
    """The policy and its tokenizer from a model directory. Raises ConfigError when it holds no model."""
    if not (config.path / "config.json").exists():
        raise ConfigError(f"no model at {config.path}; run `make setup`, or set CLAWBACK_TRAINER_MODEL")
    # Full fine-tuning keeps float32 weights: an update of 1e-5 is lost in bfloat16. Products still use `dtype`.
    dtype = _DTYPES[config.dtype] if config.mode == "lora" else torch.float32
    model = AutoModelForCausalLM.from_pretrained(str(config.path), dtype=dtype, attn_implementation=ATTENTION)
    model = model.to(config.device)
    return Policy(model, config), AutoTokenizer.from_pretrained(str(config.path))
