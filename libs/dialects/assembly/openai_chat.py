"""OpenAI chat completions: `chat.completion.chunk` events to one `chat.completion`.

Source: the OpenAI API reference, "Chat Completions / Streaming". Fields that the reference does not know (reasoning
text, provider details) are kept: strings and lists grow, the rest replaces.
"""

from __future__ import annotations

from typing import Any

from libs.dialects.assembly.base import Json, extend, fresh, merge
from libs.dialects.assembly.choices import ChoiceAssembler

_WHOLE = frozenset({"role", "id", "type", "format"})  # repeated whole when a server repeats them at all


class ChatAssembler(ChoiceAssembler):
    """Takes the chunks of a streamed chat completion, any number of choices."""

    def start(self) -> Json:
        return {"message": {}}

    def add(self, choice: Json, part: Json) -> None:
        for key, value in part.items():
            if key == "delta":
                self._delta(choice["message"], value or {})
            elif key == "logprobs" and isinstance(value, dict):
                merge(choice, {key: value})
            elif isinstance(value, list):
                choice[key] = [*(choice.get(key) or []), *value]
            elif key != "index" and (value is not None or key not in choice):
                choice[key] = value

    def _delta(self, message: Json, delta: Json) -> None:
        calls = delta.get("tool_calls")
        merge(message, {k: v for k, v in delta.items() if k != "tool_calls"}, replace=_WHOLE)
        if calls:
            have = message.setdefault("tool_calls", [])
            for position, call in enumerate(calls):
                _tool_call(have, {"index": position, **call})

    def close_choice(self, choice: Json) -> Json:
        return _finished(choice)

    def build(self) -> Any | None:
        top = super().build()
        return top and {**top, "object": "chat.completion"}


def _tool_call(have: list[Json], part: Json) -> None:
    # Some servers send a complete call with an index that an earlier, different call already has.
    same = [c for c in have if c["index"] == part["index"]]
    if same and part.get("id") and same[-1].get("id") and part["id"] != same[-1]["id"]:
        have.append(fresh(part, replace=_WHOLE))
        return
    if not same:
        have.append(fresh(part, replace=_WHOLE))
        return
    slot, function = same[-1], dict(part.get("function") or {})
    if function.get("name") and function["name"] == (slot.get("function") or {}).get("name"):
        function.pop("name")  # repeated whole by some servers
    if not part.get("id"):
        part.pop("id", None)
    extend([slot], [{**part, "function": function}], replace=_WHOLE)


def _finished(choice: Json) -> Json:
    message = dict(choice["message"])
    message.setdefault("role", "assistant")
    message.setdefault("content", None)
    if calls := message.get("tool_calls"):
        message["tool_calls"] = [{k: v for k, v in c.items() if k != "index"} for c in calls]
        message["content"] = message["content"] or None
    return {**choice, "message": message, "finish_reason": choice.get("finish_reason")}
