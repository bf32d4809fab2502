"""The text that the Inspector shows: what was asked and answered, bounded by bytes, the oldest let go first.

Rendering is tolerant on purpose: a request of any dialect gives its newest user or tool text, or nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import msgspec

from libs.contracts import Record, TrafficRaw, TurnJudged, TurnMatched

MAX_TEXT = 4_000  # characters of one text


class Text(msgspec.Struct, kw_only=True):
    """What is shown of one exchange."""

    prompt: str = ""
    reply: str = ""
    next_state: str = ""
    hints: list[str] = msgspec.field(default_factory=list)
    rejected: str = ""
    preserved: str = ""

    def size(self) -> int:
        """Characters held, a little more than the bytes of a mostly-ASCII conversation."""
        return 200 + sum(map(len, (self.prompt, self.reply, self.next_state, self.rejected, *self.hints)))


class Conversations:
    """Texts by exchange id."""

    def __init__(self, max_bytes: int) -> None:
        self._max = max_bytes
        self._held = 0
        self._texts: OrderedDict[str, Text] = OrderedDict()

    def get(self, exchange_id: str) -> Text:
        """The texts of an exchange, empty when they were let go."""
        return self._texts.get(exchange_id, Text())

    def observe(self, record: Record) -> None:
        """Take what a record of traffic.raw, turns.matched or turns.judged shows."""
        if not self._max:
            return
        match record:
            case TrafficRaw():
                self._set(record.exchange_id, prompt=newest_text(record.request), reply=reply_text(record.response))
            case TurnMatched():
                said = "\n".join(f"{m.role}: {m.text}" for m in record.next_state)
                self._set(record.turn_id, reply=record.reply, next_state=said)
            case TurnJudged():
                self._set(
                    record.turn_id, hints=record.hints, rejected=record.rejected, preserved=record.preserved
                )  # fmt: skip

    def forget(self, exchange_id: str) -> None:
        """Drop an exchange's texts."""
        text = self._texts.pop(exchange_id, None)
        self._held -= text.size() if text else 0

    def _set(self, exchange_id: str, **facts: Any) -> None:
        text = self._texts.get(exchange_id)
        if text is None:
            text = self._texts[exchange_id] = Text()
        else:
            self._held -= text.size()
        for name, value in facts.items():
            if value:
                cut = value[:MAX_TEXT] if isinstance(value, str) else [v[:MAX_TEXT] for v in value]
                setattr(text, name, cut)
        self._held += text.size()
        while self._held > self._max:
            _, oldest = self._texts.popitem(last=False)
            self._held -= oldest.size()


def newest_text(request: Any) -> str:
    """The newest message of a provider request as text: messages[-1] or input (its last item)."""
    if not isinstance(request, dict):
        return ""
    items = request.get("messages") or request.get("input") or ""
    return _text(items[-1]) if isinstance(items, list) and items else _text(items)


def reply_text(response: Any) -> str:
    """The reply of a provider response as text: choices[0].message, content blocks or output items."""
    if not isinstance(response, dict):
        return ""
    choices = response.get("choices")
    if isinstance(choices, list) and choices and isinstance(choices[0], dict):
        return _text(choices[0].get("message"))
    return _text(response.get("content") or response.get("output"))


def _text(part: Any, depth: int = 0) -> str:
    if isinstance(part, str):
        return part
    if depth > 8:
        return ""
    if isinstance(part, list):
        return "\n".join(filter(None, (_text(p, depth + 1) for p in part)))
    if isinstance(part, dict):
        own = next((_text(part[k], depth + 1) for k in ("content", "text", "output") if part.get(k)), "")
        calls = part.get("tool_calls")
        names = [
            str(c.get("function", {}).get("name", "tool")) + "(...)"
            for c in (calls if isinstance(calls, list) else [])
            if isinstance(c, dict) and isinstance(c.get("function", {}), dict)
        ]
        if part.get("type") in ("tool_use", "function_call"):
            names.append(f"{part.get('name', 'tool')}(...)")
        return "\n".join(filter(None, [own, *names]))
    return ""
