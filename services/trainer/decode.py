"""From a training batch's records to what the update takes: any provider's request becomes chat messages."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from libs.contracts import Array, Sample
from libs.dialects import ChatMessage, for_path
from libs.errors import ContractError
from libs.learning.samples import TrainSample, hinted_prompts


def chat_messages(path: str, request: Any) -> list[dict[str, Any]]:
    """The request's messages as a chat template takes them. Raises ContractError for an unknown path or body."""
    dialect = for_path(path)
    if dialect is None:
        raise ContractError(f"path {path!r} carries no known API", reason="unknown_path")
    return [_message(m) for m in dialect.parse_request(request).messages]


def _message(message: ChatMessage) -> dict[str, Any]:
    out: dict[str, Any] = {"role": message.role, "content": message.text}
    if message.tool_calls:
        out["tool_calls"] = [
            {"type": "function", "id": c.id, "function": {"name": c.name, "arguments": _arguments(c.arguments)}}
            for c in message.tool_calls
        ]
    if message.role == "tool" and message.id:
        out["tool_call_id"] = message.id
    return out


def _arguments(text: str) -> Any:
    """Templates expect parsed arguments; text that does not parse stays text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def tools_of(request: Any) -> list[Any] | None:
    """The request's tool definitions, as the template renders them, or None."""
    tools = request.get("tools") if isinstance(request, dict) else None
    return tools if isinstance(tools, list) and tools else None


def train_sample(sample: Sample, tokenizer: Any) -> TrainSample:
    """One sample, its hinted prompts rendered. Raises ContractError or DeadLetterError naming what is wrong."""
    capture = sample.capture
    capture.check()
    messages = chat_messages(sample.path, sample.request)
    return TrainSample(
        feedback_id=sample.feedback_id,
        prompt_ids=_ids(capture.prompt_token_ids),
        response_ids=_ids(capture.response_token_ids),
        topk_ids=np.array(capture.topk_ids.values(), dtype=np.int64).reshape(capture.topk_ids.shape),
        captured_logp=np.array(capture.logprobs.values(), dtype=np.float32),
        hint_prompts=hinted_prompts(tokenizer, messages, tools_of(sample.request), sample.hints),
        reward=sample.reward,
        weight=sample.weight,
        release_id=sample.release_id,
    )


def _ids(array: Array) -> tuple[int, ...]:
    return tuple(int(i) for i in array.values())
