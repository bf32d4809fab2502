"""OpenAI responses: the event stream to one `response`.

Source: the OpenAI API reference, "Responses / Streaming". The closing event carries the whole response; a stream that
was cut before it is put together from the items and deltas that came.
"""

from __future__ import annotations

from typing import Any, ClassVar

from libs.dialects.assembly.base import EventAssembler, Json

_CLOSING = {"response.completed", "response.incomplete", "response.failed", "response.cancelled"}
_FAILED = {"response.failed", "response.cancelled"}
# event -> (list inside the item, field that grows)
_PART_TEXT = {
    "response.output_text.delta": ("content", "text", "output_text"),
    "response.refusal.delta": ("content", "refusal", "refusal"),
    "response.reasoning_text.delta": ("content", "text", "reasoning_text"),
    "response.reasoning_summary_text.delta": ("summary", "text", "summary_text"),
}
_ITEM_TEXT = {
    "response.function_call_arguments.delta": "arguments",
    "response.custom_tool_call_input.delta": "input",
    "response.mcp_call_arguments.delta": "arguments",
    "response.code_interpreter_call_code.delta": "code",
}


class ResponseAssembler(EventAssembler):
    """Takes the events of a streamed response, complete or cut."""

    TERMINAL: ClassVar[tuple[bytes, ...]] = (*(kind.encode() for kind in sorted(_CLOSING)), b"[DONE]")

    def __init__(self) -> None:
        super().__init__()
        self._response: Json | None = None
        self._items: dict[int, Json] = {}
        self._places: dict[tuple[Any, str, int], int] = {}  # where each part that the stream names has its place
        self._final = False

    def take(self, name: str, payload: Json) -> None:
        kind = payload.get("type") or name
        if kind in _CLOSING:
            last = payload.get("response") or {}
            self._response = last or self._response
            # A response that failed may come without what was streamed of it.
            self._final = bool(last.get("output")) or (bool(last) and not self._items)
            self.complete = True
            if kind in _FAILED:
                self.error = self.error or payload
        elif kind in ("response.created", "response.in_progress", "response.queued"):
            self._response = payload.get("response") or self._response
        elif kind in ("response.output_item.added", "response.output_item.done"):
            self._items[payload.get("output_index", 0)] = dict(payload.get("item") or {})
        elif kind in _PART_TEXT:
            self._part(payload, *_PART_TEXT[kind])
        elif field := _ITEM_TEXT.get(kind):
            item = self._items.setdefault(payload.get("output_index", 0), {})
            item[field] = (item.get(field) or "") + (payload.get("delta") or "")

    def _part(self, payload: Json, where: str, field: str, part_type: str) -> None:
        output = payload.get("output_index", 0)
        item = self._items.setdefault(output, {"type": "message", "role": "assistant"})
        parts: list[Json] = list(item.get(where) or [])
        index = int(payload.get("content_index") or payload.get("summary_index") or 0)
        # Parts come one after another; an index far beyond them is the next one, not a gap to fill.
        index = self._places.setdefault((output, where, index), index if index < len(parts) else len(parts))
        if index >= len(parts):
            index = len(parts)
            parts.append({"type": part_type, field: ""})
        parts[index] = {**parts[index], field: (parts[index].get(field) or "") + (payload.get("delta") or "")}
        item[where] = parts

    def build(self) -> Any | None:
        if self._final or not self._items:
            return self._response
        return {**(self._response or {"object": "response"}), "output": [self._items[i] for i in sorted(self._items)]}
