"""Messages to prompt tokens through the model's own chat template.

Templates differ in what they accept; this brings what clients send (null content, lists of parts, tool calls, tool
results) into a form that every template renders, and changes nothing that a template understands by itself.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from libs.errors import DeadLetterError
from libs.learning.prompts import render


class PromptError(ValueError):
    """The messages cannot be rendered. `field` names the part of the request at fault, e.g. messages[2].content."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


class ChatTokenizer:
    """A tokenizer with its chat template. Thread-safe as far as the tokenizers library is: encode and decode are."""

    def __init__(self, directory: Path) -> None:
        from transformers import AutoTokenizer

        self._tokenizer = AutoTokenizer.from_pretrained(str(directory))
        self._knows_tool_calls = "tool_calls" in (self._tokenizer.chat_template or "")

    def prompt_ids(
        self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]] | None = None
    ) -> list[int]:
        """Token ids of the rendered conversation with the assistant's turn opened. Raises PromptError."""
        plain = [plain_message(m, i, self._knows_tool_calls) for i, m in enumerate(messages)]
        try:
            return render(self._tokenizer, plain, tools)
        except DeadLetterError as error:
            raise PromptError("messages", str(error)) from error

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Token ids; `special` adds the tokens that the tokenizer puts around a plain text."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=special)
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Text without special tokens and without any clean-up: what was sampled is what is shown."""
        text: str = self._tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text

    def token(self, token_id: int) -> str:
        """One token as text, for the log-prob listing; special tokens show their name."""
        text: str = self._tokenizer.decode([token_id], skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return text


def plain_message(message: dict[str, Any], index: int, knows_tool_calls: bool) -> dict[str, Any]:
    """One message with its content as a string. Tool calls stay structured where the template reads them, with their

    arguments parsed; otherwise they become text in the form that open models write them. Raises PromptError.
    """
    role = message["role"]
    out = dict(message) | {"role": "system" if role == "developer" else role}
    out["content"] = _text(message.get("content"), f"messages[{index}].content")
    calls = out.pop("tool_calls", None)
    if calls and knows_tool_calls:
        out["tool_calls"] = [_parsed_arguments(call) for call in calls]
    elif calls:
        shown = [f"<tool_call>\n{json.dumps(_call(call), ensure_ascii=False)}\n</tool_call>" for call in calls]
        out["content"] = "\n".join([*([out["content"]] if out["content"] else []), *shown])
    return out


def _text(content: Any, field: str) -> str:
    """Message content as one string: None is empty, text parts are joined. Raises PromptError for other parts."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    texts: list[str] = []
    for at, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        text = part.get("text", part.get("refusal")) if isinstance(part, dict) else part
        if not isinstance(text, str) or kind not in ("text", "input_text", "output_text", "refusal", None):
            raise PromptError(f"{field}[{at}]", f"parts of type {kind!r} are not supported: this model reads text only")
        texts.append(text)
    return "\n".join(texts)


def _call(call: dict[str, Any]) -> dict[str, Any]:
    function = call.get("function") or {}
    return {"name": function.get("name"), "arguments": _arguments(function.get("arguments"))}


def _parsed_arguments(call: dict[str, Any]) -> dict[str, Any]:
    """Templates iterate over arguments, which travel as a JSON string."""
    function = dict(call.get("function") or {})
    return {**call, "function": {**function, "arguments": _arguments(function.get("arguments"))}}


def _arguments(arguments: Any) -> Any:
    if not isinstance(arguments, str):
        return arguments
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments
