"""From a training batch's records to what the update takes: any provider's request becomes chat messages."""

from __future__ import annotations

import json
from typing import Any

from libs.contracts import Sample
from libs.dialects import ChatMessage, for_path
from libs.errors import ContractError
from libs.learning.offline import train_sample as from_messages
from libs.learning.samples import TrainSample


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


def train_sample(sample: Sample, tokenizer: Any) -> TrainSample:
    """One sample, its hinted prompts rendered. Raises ContractError or DeadLetterError naming what is wrong."""
    return from_messages(sample, tokenizer, chat_messages(sample.path, sample.request))
