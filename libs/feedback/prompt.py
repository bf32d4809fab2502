"""What a reply answered, read from a request in any of the three forms, for records whose producer did not say it."""

from __future__ import annotations

from typing import Any

from libs.contracts import Message

_OURS = {"assistant", "model"}


def prompt_of(request: Any) -> list[Message]:
    """The messages after the last assistant message, oldest first. Lenient: what cannot be read is left out."""
    if not isinstance(request, dict):
        return []
    items = request.get("messages", request.get("input"))
    if isinstance(items, str):
        return [Message("user", items)]
    found: list[Message] = []
    for item in items if isinstance(items, list) else []:
        if not isinstance(item, dict):
            continue
        role = str(item.get("role") or ("tool" if str(item.get("type", "")).endswith("_output") else "assistant"))
        if role in _OURS:
            found.clear()
        elif role in {"user", "tool"}:
            found.append(Message(role, _text(item.get("content", item.get("output")))))
    return [m for m in found if m.text.strip()]


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "\n".join(_text(p.get("text", p.get("content"))) for p in parts if isinstance(p, dict)).strip()
