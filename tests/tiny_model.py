"""A Llama of a few thousand parameters with a byte tokenizer and a chat template: real code paths in milliseconds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from libs.contracts import Array, Capture, Sample, TrainingBatch

TEMPLATE = (
    "{% for m in messages %}{{ '<|' + m['role'] + '|>' + (m['content'] or '') + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
SPECIALS = ["<|end|>", "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>"]
VOCAB = 256 + len(SPECIALS)


def tokenizer() -> Any:
    bytes_ = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(bytes_)}, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens(SPECIALS)
    fast = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<|end|>", pad_token="<|end|>")
    fast.chat_template = TEMPLATE
    return fast


def write_model(directory: Path, *, seed: int = 0, context: int = 512, tied: bool = True) -> Path:
    """A model directory as transformers reads it. The weights are large enough for logits that differ."""
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=context,
        tie_word_embeddings=tied,
        eos_token_id=256,
        bos_token_id=256,
        pad_token_id=256,
        initializer_range=0.15,
    )
    torch.manual_seed(seed)
    model = LlamaForCausalLM(config)
    model.save_pretrained(directory)
    tokenizer().save_pretrained(directory)
    return directory


def sample(
    feedback_id: str,
    *,
    prompt: str = "Tell me of plastic.",
    reply: str = "- one\n- two",
    hints: tuple[str, ...] = ("Write prose.",),
    reward: float = -1.0,
    release_id: str = "base",
    k: int = 4,
    seed: int = 0,
    **changes: Any,
) -> Sample:
    """A judged turn whose capture has the tiny tokenizer's ids and random candidates that hold the sampled token."""
    tok = tokenizer()
    messages = [{"role": "user", "content": prompt}]
    prompt_ids = tok.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    reply_ids = [*tok(reply)["input_ids"], 256]
    rng = np.random.default_rng(seed)
    top = np.stack([rng.permutation(VOCAB)[:k] for _ in reply_ids])
    top[:, 0] = reply_ids
    values: dict[str, Any] = {
        "feedback_id": feedback_id,
        "turn_id": f"turn-{feedback_id}",
        "session_id": "s",
        "reward": reward,
        "verdict": int(reward),
        "hints": list(hints),
        "path": "/v1/chat/completions",
        "request": {"model": "tiny", "messages": messages},
        "response": {"choices": [{"message": {"role": "assistant", "content": reply}}]},
        "release_id": release_id,
        "capture": Capture(
            prompt_token_ids=Array.ints(prompt_ids),
            response_token_ids=Array.ints(reply_ids),
            logprobs=Array.floats([-1.0] * len(reply_ids)),
            topk_ids=Array.ints(top.flatten().tolist(), top.shape),
            topk_logprobs=Array.floats([-1.0] * top.size, top.shape),
        ),
        "received_at": 1.0,
        "judged_at": 2.0,
    }
    return Sample(**{**values, **changes})


def batch(batch_id: str, *samples: Sample, scenario: str = "anna") -> TrainingBatch:
    return TrainingBatch(batch_id=batch_id, scenario=scenario, samples=list(samples), created_at=3.0)
