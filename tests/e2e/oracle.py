"""What the served weights say about a text, computed with transformers and peft alone: independent of our own code."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer


class Oracle:
    """The base model and any release of it. Log-probs are natural, of the full softmax at temperature 1."""

    def __init__(self, model: Path) -> None:
        self.tokenizer: Any = AutoTokenizer.from_pretrained(model)
        self._model_path = model

    def logprobs(self, prompt: Sequence[int], response: Sequence[int], weights: str | None = None) -> Tensor:
        """[R, V]: the distribution before each response token, under the base or under a release's adapter."""
        model: Any = AutoModelForCausalLM.from_pretrained(self._model_path, dtype=torch.float32).eval()
        if weights is not None:
            model = PeftModel.from_pretrained(model, weights).eval()
        ids = torch.tensor([[*prompt, *response]])
        with torch.no_grad():
            logits = model(input_ids=ids).logits[0, len(prompt) - 1 : -1]
        return torch.log_softmax(logits.float(), dim=-1)

    def prompt_ids(self, messages: Sequence[dict[str, str]]) -> list[int]:
        """The chat template over `messages`, with the opening of the assistant's turn."""
        found: list[int] = self.tokenizer.apply_chat_template(
            list(messages), add_generation_prompt=True, return_dict=False
        )
        return found
