"""OpenAI responses (/v1/responses): a flat list of items; what one response put out is several items in a row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from libs.dialects.base import (
    ChatMessage,
    ParsedRequest,
    ParsedResponse,
    ToolCall,
    as_object,
    call,
    items,
    join,
    plain,
    positive,
    role_of,
    text_id,
    tool_names,
)
from libs.dialects.chat_completions import content_parts

_SKIP = {"item_reference"}
_META = {"id", "call_id", "type", "status", "name", "arguments", "input", "encrypted_content", "internal_chat_message"}


class Responses:
    """Source: the OpenAI API reference, responses."""

    name = "responses"

    def parse_request(self, body: Any) -> ParsedRequest:
        """Raises ContractError when the body is no JSON object."""
        body = as_object(body, "request")
        out: list[ChatMessage] = []
        if isinstance(body.get("instructions"), str) and body["instructions"]:
            out.append(ChatMessage(role="system", text=body["instructions"]))
        given = body.get("input")
        if isinstance(given, str):
            out.append(ChatMessage(role="user", text=given))
        else:
            out.extend(merge(items(given)))
        return ParsedRequest(
            dialect=self.name,
            messages=tuple(out),
            model=text_id(body.get("model")),
            tool_names=tool_names(body.get("tools")),
            max_tokens=positive(body.get("max_output_tokens")),
            previous_response_id=text_id(body.get("previous_response_id")) or None,
            body=body,
        )

    def parse_response(self, body: Any) -> ParsedResponse:
        """Raises ContractError when the body is no JSON object."""
        body = as_object(body, "response")
        error = body.get("error")
        found = [m for m in merge(items(body.get("output"))) if m.role == "assistant"]
        reply = _joined(found) if found else None
        finish = ""
        if body.get("status") == "incomplete":
            finish = "length"
        elif body.get("status") == "completed":
            finish = "tool_calls" if reply and reply.tool_calls else "stop"
        return ParsedResponse(
            dialect=self.name,
            choices=(reply,) if reply else (),
            finish=finish,
            id=text_id(body.get("id")),
            error=plain(error) if error else "",
        )


def merge(raw: Sequence[Mapping[str, Any]]) -> list[ChatMessage]:
    """Items as messages: reasoning, text and calls in a row are one assistant message; a text item starts anew.

    A text item after a call belongs to the same output only in a response; in a request it is a later reply when a
    user or tool item lies between, so a run is cut only by those.
    """
    out: list[ChatMessage] = []
    run: list[ChatMessage] = []
    for item in raw:
        found = item_message(item)
        if found is None:
            continue
        if found.role == "assistant":
            run.append(found)
            continue
        if run:
            out.append(_joined(run))
            run = []
        out.append(found)
    if run:
        out.append(_joined(run))
    return out


def item_message(item: Mapping[str, Any]) -> ChatMessage | None:
    """One item as a message, or None for an item that says nothing (a reference)."""
    kind = item.get("type")
    kind = kind if isinstance(kind, str) else "message"
    if kind in _SKIP:
        return None
    if kind == "reasoning":
        summary, content = item.get("summary"), item.get("content")
        return ChatMessage("assistant", "", reasoning=join([plain(summary), plain(content)]))
    if kind.endswith(("_call_output", "_output", "_approval_response")):
        output = item.get("output", item.get("content"))
        texts, media, _ = content_parts(output)
        text = join(texts) if texts or media else plain(output)
        return ChatMessage("tool", text, media=tuple(media), id=text_id(item.get("call_id")))
    if kind.endswith("_call"):
        return ChatMessage("assistant", "", tool_calls=(_call(kind, item),))
    if kind == "message" or "role" in item:
        texts, media, thoughts = content_parts(item.get("content"))
        role = role_of(item.get("role"), "assistant" if kind == "output_text" else "user")
        return ChatMessage(role, join(texts), (), join(thoughts), tuple(media), text_id(item.get("id")))
    texts, media, _ = content_parts(item.get("content") or item.get("summary") or item.get("text"))
    return ChatMessage("user", join(texts), media=tuple(media)) if texts or media else None


def _call(kind: str, item: Mapping[str, Any]) -> ToolCall:
    name = item.get("name") or kind.removesuffix("_call")
    arguments = item.get("arguments", item.get("input"))
    if arguments is None:
        arguments = {k: v for k, v in item.items() if k not in _META}
    return call(name, arguments, item.get("call_id") or item.get("id"))


def _joined(run: Sequence[ChatMessage]) -> ChatMessage:
    return ChatMessage(
        role="assistant",
        text=join(m.text for m in run),
        tool_calls=tuple(c for m in run for c in m.tool_calls),
        reasoning=join(m.reasoning for m in run),
        media=tuple(d for m in run for d in m.media),
        id=next((m.id for m in run if m.id), ""),
    )
