"""OpenAI chat completions (/v1/chat/completions): messages with content as text or parts, tool_calls beside it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from libs.dialects.base import (
    ChatMessage,
    ParsedRequest,
    ParsedResponse,
    ToolCall,
    as_object,
    call,
    digest,
    items,
    join,
    plain,
    positive,
    role_of,
    text_id,
    tool_names,
)

_REASONING_FIELDS = ("reasoning_content", "reasoning", "thinking", "reasoning_details")
_FINISH = {"tool_calls": "tool_calls", "function_call": "tool_calls", "length": "length", "stop": "stop"}


class ChatCompletions:
    """Source: the OpenAI API reference, chat completions; reasoning fields as vLLM, DeepSeek and OpenRouter send."""

    name = "chat_completions"

    def parse_request(self, body: Any) -> ParsedRequest:
        """Raises ContractError when the body is no JSON object."""
        body = as_object(body, "request")
        raw = body.get("messages")
        messages = [message(m) for m in items(raw)]
        if not messages and isinstance(body.get("prompt"), str):
            messages = [ChatMessage(role="user", text=body["prompt"])]
        return ParsedRequest(
            dialect=self.name,
            messages=tuple(messages),
            model=text_id(body.get("model")),
            tool_names=tool_names(body.get("tools") or body.get("functions")),
            max_tokens=positive(body.get("max_completion_tokens"), body.get("max_tokens")),
            body=body,
        )

    def parse_response(self, body: Any) -> ParsedResponse:
        """Raises ContractError when the body is no JSON object. Several choices (n > 1) come in order of index."""
        body = as_object(body, "response")
        choices = []
        finish = ""
        for choice in items(body.get("choices")):
            inner = choice.get("message")
            if isinstance(inner, Mapping):
                choices.append(message(inner, "assistant"))
            elif isinstance(choice.get("text"), str):
                choices.append(ChatMessage(role="assistant", text=choice["text"]))
            reason = choice.get("finish_reason")
            finish = finish or (_FINISH.get(reason, "refusal") if isinstance(reason, str) else "")
        return ParsedResponse(
            dialect=self.name,
            choices=tuple(choices),
            finish=finish,
            id=text_id(body.get("id")),
            error=plain(body.get("error")) if body.get("error") else "",
        )


def message(raw: Mapping[str, Any], default: str = "user") -> ChatMessage:
    """One message of a chat completions list."""
    content = raw.get("content")
    if len(raw) == 2 and isinstance(content, str):  # nearly every message
        return ChatMessage(role_of(raw.get("role"), default), content)
    role = role_of(raw.get("role"), default)
    texts, media, thought = content_parts(content)
    if isinstance(raw.get("refusal"), str) and not texts:
        texts = [raw["refusal"]]
    thoughts = [plain(raw[f]) for f in _REASONING_FIELDS if raw.get(f)]
    return ChatMessage(
        role=role,
        text=join(texts),
        tool_calls=tuple(_calls(raw)),
        reasoning=thoughts[0] if thoughts else join(thought),
        media=tuple(media),
        id=text_id(raw.get("tool_call_id")) if role == "tool" else text_id(raw.get("id")),
    )


def content_parts(content: Any) -> tuple[list[str], list[str], list[str]]:
    """Texts, media digests and reasoning texts of a content field: text, or a list of parts."""
    if isinstance(content, str):
        return [content], [], []
    texts: list[str] = []
    media: list[str] = []
    thoughts: list[str] = []
    for part in content if isinstance(content, list | tuple) else [content] if isinstance(content, Mapping) else []:
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(part, Mapping):
            kind = str(part.get("type", "text"))
            if kind in ("thinking", "reasoning", "reasoning_text", "redacted_thinking"):
                thoughts.append(plain(part.get("thinking") or part.get("text")))
            elif isinstance(part.get("text"), str):
                texts.append(part["text"])
            elif isinstance(part.get("refusal"), str):
                texts.append(part["refusal"])
            else:
                media.append(digest({k: v for k, v in part.items() if k not in ("cache_control", "detail")}))
    return texts, media, thoughts


def _calls(raw: Mapping[str, Any]) -> list[ToolCall]:
    found = []
    for item in items(raw.get("tool_calls")):
        inner = item.get("function") or item.get("custom")
        if isinstance(inner, Mapping):
            arguments = inner.get("arguments", inner.get("input"))
            found.append(call(inner.get("name"), arguments, item.get("id")))
    old = raw.get("function_call")
    if not found and isinstance(old, Mapping):
        found.append(call(old.get("name"), old.get("arguments")))
    return found
