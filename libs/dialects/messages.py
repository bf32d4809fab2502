"""Anthropic messages (/v1/messages): system beside the list, content blocks, tool results inside user messages."""

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

_FINISH = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "pause_turn": "stop",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
}
# A provider's own tools run on its side: their use and result are blocks of the same assistant message.
_USES = ("tool_use", "server_tool_use", "mcp_tool_use")


class Messages:
    """Source: the Anthropic API reference, messages."""

    name = "messages"

    def parse_request(self, body: Any) -> ParsedRequest:
        """Raises ContractError when the body is no JSON object."""
        body = as_object(body, "request")
        system = body.get("system")
        out: list[ChatMessage] = []
        if system:
            out.append(ChatMessage(role="system", text=plain(system)))
        for raw in items(body.get("messages")):
            out.extend(split(raw))
        return ParsedRequest(
            dialect=self.name,
            messages=tuple(out),
            model=text_id(body.get("model")),
            tool_names=tool_names(body.get("tools")),
            max_tokens=positive(body.get("max_tokens")),
            body=body,
        )

    def parse_response(self, body: Any) -> ParsedResponse:
        """Raises ContractError when the body is no JSON object."""
        body = as_object(body, "response")
        error = body.get("error")
        choices: tuple[ChatMessage, ...] = ()
        if isinstance(body.get("content"), list | str) and not error:
            choices = tuple(split({"role": "assistant", "content": body["content"]}))[:1]
        reason = body.get("stop_reason")
        return ParsedResponse(
            dialect=self.name,
            choices=choices,
            finish=_FINISH.get(reason, "refusal") if isinstance(reason, str) else "",
            id=text_id(body.get("id")),
            error=plain(error) if error else "",
        )


def split(raw: Mapping[str, Any]) -> list[ChatMessage]:
    """One wire message as one or more: each tool result becomes a tool message, before the words beside it."""
    role = role_of(raw.get("role"))
    content = raw.get("content")
    blocks = [content] if isinstance(content, str | Mapping) else content if isinstance(content, list | tuple) else []
    texts: list[str] = []
    media: list[str] = []
    thoughts: list[str] = []
    calls: list[ToolCall] = []
    results: list[ChatMessage] = []
    for block in blocks:
        if isinstance(block, str):
            texts.append(block)
            continue
        if not isinstance(block, Mapping):
            continue
        kind = block.get("type", "text")
        if kind in _USES:
            calls.append(call(block.get("name"), block.get("input"), block.get("id")))
        elif kind == "tool_result":
            results.append(_result(block))
        elif kind in ("thinking", "redacted_thinking"):
            thoughts.append(plain(block.get("thinking")))
        elif isinstance(block.get("text"), str):
            texts.append(block["text"])
        else:
            media.append(digest({k: v for k, v in block.items() if k != "cache_control"}))
    rest = ChatMessage(role, join(texts), tuple(calls), join(thoughts), tuple(media), text_id(raw.get("id")))
    return [*results, rest] if not results or not rest.empty else results


def _result(block: Mapping[str, Any]) -> ChatMessage:
    content = block.get("content")
    parts = content if isinstance(content, list | tuple) else []
    media = [digest(p) for p in items(parts) if not isinstance(p.get("text"), str)]
    texts = [p["text"] for p in items(parts) if isinstance(p.get("text"), str)]
    text = join(texts) if parts else plain(content)
    return ChatMessage(role="tool", text=text, media=tuple(media), id=text_id(block.get("tool_use_id")))
