"""Small models and adapters for the engine's tests, and what transformers computes for them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM

from libs.contracts import Adapter
from libs.learning.engine.decoder import Decoder
from libs.learning.engine.engine import Engine, Limits
from libs.learning.engine.release import load_release
from libs.learning.engine.sampling import Sampling
from libs.learning.engine.sequence import Release, Request, Step
from libs.learning.engine.sequence import Sequence as Running
from libs.learning.engine.weights import load_weights

GREEDY = Sampling(temperature=0.0, captured=4)


def write_adapter(model_dir: Path, target: Path, *, seed: int, strength: float = 0.3, **config: Any) -> Adapter:
    """A peft adapter with random weights, as the trainer writes one."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    settings = {"r": 4, "lora_alpha": 8, "target_modules": "all-linear", "task_type": "CAUSAL_LM"} | config
    wrapped = get_peft_model(model, LoraConfig(**settings))
    for name, parameter in wrapped.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=strength)
    wrapped.save_pretrained(str(target))
    return Adapter(kind="lora", uri=str(target), digest=digest(target / "adapter_model.safetensors"))


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@lru_cache(maxsize=16)
def _transformers(model_dir: Path, adapter: Path | None) -> Any:
    model: Any = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    return (model if adapter is None else PeftModel.from_pretrained(model, str(adapter))).eval()


def reference(model_dir: Path, tokens: Sequence[int], adapter: Path | None = None) -> torch.Tensor:
    """transformers' log-probabilities of the next token after each of `tokens`: float32 [T, V]."""
    with torch.no_grad():
        return _transformers(model_dir, adapter)(torch.tensor([list(tokens)])).logits[0].log_softmax(-1)


class Bench:
    """An engine over one model directory, with its base and adapter releases."""

    def __init__(self, model_dir: Path, limits: Limits | None = None) -> None:
        self.weights = load_weights(model_dir)
        self.base = Release("base", Decoder(self.weights))
        self.engine = Engine(self.weights, lambda ids: "".join(chr(i) for i in ids), limits)
        self.steps: dict[Running, list[Step]] = {}

    def release(self, release_id: str, adapter: Adapter) -> Release:
        return load_release(release_id, adapter, self.base.decoder).release

    def ask(self, prompt: Sequence[int], release: Release | None = None, **changes: Any) -> Running:
        values: dict[str, Any] = {"queue": "s", "max_new_tokens": 8, "sampling": GREEDY, "seed": "1"}
        return self.engine.submit(Request(prompt=prompt, release=release or self.base, **{**values, **changes}))

    def step(self) -> None:
        for sequence, step in self.engine.step():
            self.steps.setdefault(sequence, []).append(step)

    def run(self) -> dict[Running, list[Step]]:
        """Step until nothing is left; everything that came out, of earlier steps too."""
        while not self.engine.idle:
            self.step()
        return self.steps


def logprobs(steps: Sequence[Step]) -> list[float]:
    return [step.drawn.logprob for step in steps if step.drawn is not None]


def expected(model_dir: Path, sequence: Running, adapter: Path | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """What transformers gives for what was sampled: log-probs [R], and whole rows [R, V]."""
    ids = [*sequence.prompt.tolist(), *sequence.generated]
    rows = reference(model_dir, ids, adapter)[len(sequence.prompt) - 1 : -1]
    return rows.gather(1, torch.tensor(sequence.generated)[:, None])[:, 0], rows
