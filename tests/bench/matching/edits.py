"""Edits of raw request items that mean the same in all three dialects. An item is one element of messages or input."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from typing import Any

Item = dict[str, Any]


def items_of(request: Any) -> list[Item]:
    """The conversation items of a request, whatever its dialect."""
    if not isinstance(request, dict):
        return []
    for name in ("messages", "input"):
        if isinstance(request.get(name), list):
            return [i for i in request[name] if isinstance(i, dict)]
        if isinstance(request.get(name), str):
            return [{"role": "user", "content": request[name]}]
    return []


def with_items(request: Any, items: list[Item]) -> Any:
    """The request with other items."""
    name = "messages" if "messages" in request else "input"
    return {**request, name: items}


def kind(item: Item) -> str:
    """system | user | assistant | tool; a responses item without role by its type."""
    role, type_ = item.get("role"), str(item.get("type", ""))
    if role in ("system", "developer"):
        return "system"
    if role == "tool" or type_.endswith("_output"):
        return "tool"
    if role == "assistant" or type_ == "reasoning" or type_.endswith("_call"):
        return "assistant"
    content = item.get("content")
    results = isinstance(content, list) and any(isinstance(p, dict) and p.get("type") == "tool_result" for p in content)
    return "tool" if results else "user"


def map_text(item: Item, change: Callable[[str], str]) -> Item:
    """The item with its visible text changed (not arguments, not results)."""
    item = copy.deepcopy(item)
    content = item.get("content")
    if isinstance(content, str):
        item["content"] = change(content)
    elif isinstance(content, list):
        for part in content:
            if isinstance(part, dict) and isinstance(part.get("text"), str) and part.get("type") != "tool_result":
                part["text"] = change(part["text"])
    return item


def text_of(item: Item) -> str:
    """The item's visible text."""
    found: list[str] = []
    map_text(item, lambda t: found.append(t) or t)  # type: ignore[func-returns-value]
    return "\n".join(found)


def deep(value: Any, change: Callable[[str], str], *, skip: frozenset[str] = frozenset()) -> Any:
    """Every string in a JSON value changed, keys aside and without the fields in `skip`."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [deep(v, change, skip=skip) for v in value]
    if isinstance(value, dict):
        return {k: v if k in skip else deep(v, change, skip=skip) for k, v in value.items()}
    return value


def calls(item: Item) -> Iterator[Item]:
    """The parts that hold a call's arguments, to be changed in place."""
    for call in item.get("tool_calls") or []:
        if isinstance(call, dict) and isinstance(call.get("function"), dict):
            yield call["function"]
    if item.get("type") == "function_call":
        yield item
    content = item.get("content")
    for part in content if isinstance(content, list) else []:
        if isinstance(part, dict) and part.get("type") == "tool_use":
            yield part


def respaced(arguments: str) -> str:
    """The same arguments with keys in another order and other white space."""
    try:
        value = json.loads(arguments)
    except ValueError:
        return arguments
    if isinstance(value, dict):
        value = dict(reversed(value.items()))
    return json.dumps(value, indent=1, ensure_ascii=True)


def user_item(like: Any, text: str) -> Item:
    """A user message in the dialect of a request."""
    if "input" in like:
        return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}
    return {"role": "user", "content": text}


def assistant_item(like: Any, text: str) -> Item:
    """An assistant message in the dialect of a request."""
    if "input" in like:
        return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}
    return {"role": "assistant", "content": text}


def response_with(like: Any, path: str, text: str) -> Any:
    """A whole response with this text, in the dialect of a path."""
    if path.endswith("/messages"):
        return {
            "id": "msg_s",
            "role": "assistant",
            "content": [{"type": "text", "text": text}],
            "stop_reason": "end_turn",
        }
    if path.endswith("/responses"):
        output = [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}]
        return {"id": "resp_s", "status": "completed", "output": output}
    message = {"role": "assistant", "content": text}
    return {"id": "chatcmpl-s", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
