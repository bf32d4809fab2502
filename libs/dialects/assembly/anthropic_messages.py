"""Anthropic messages: the event stream to one `message`.

Source: the Anthropic API reference, "Streaming Messages". Pings and unknown events are skipped, as it demands.
"""

from __future__ import annotations

from typing import Any, ClassVar

from libs.dialects.assembly.base import EventAssembler, Json
from libs.dialects.loose import NotJsonError, TooDeepError, decode

_GROWS = {"text_delta": "text", "thinking_delta": "thinking"}
_REPLACES = {"signature_delta": "signature"}


class MessageAssembler(EventAssembler):
    """Takes the events of a streamed message: text, tool use, thinking, citations, server tools."""

    TERMINAL: ClassVar[tuple[bytes, ...]] = (b"message_stop",)

    def __init__(self) -> None:
        super().__init__()
        self._message: Json | None = None
        self._blocks: dict[int, Json] = {}
        self._partial: dict[int, str] = {}

    def take(self, name: str, payload: Json) -> None:
        kind = payload.get("type") or name
        if kind == "message_start":
            self._message = dict(payload.get("message") or {})
        elif kind == "content_block_start":
            self._blocks[payload["index"]] = dict(payload["content_block"])
        elif kind == "content_block_delta":
            self._delta(payload.get("index", 0), payload.get("delta") or {})
        elif kind == "message_delta" and self._message is not None:
            self._message.update(payload.get("delta") or {})
            if usage := payload.get("usage"):
                # Counts in message_delta are cumulative; fields that it leaves out keep message_start's value.
                have = self._message.get("usage") or {}
                self._message["usage"] = {**have, **{k: v for k, v in usage.items() if v is not None or k not in have}}
            for key, value in payload.items():
                if key not in ("type", "delta", "usage"):
                    self._message[key] = value
        elif kind == "message_stop":
            self.complete = True

    def _delta(self, index: int, delta: Json) -> None:
        block = self._blocks.setdefault(index, {"type": "text", "text": ""})
        kind = delta.get("type", "")
        if field := _GROWS.get(kind):
            block[field] = (block.get(field) or "") + (delta.get(field) or "")
        elif field := _REPLACES.get(kind):
            block[field] = delta.get(field)
        elif kind == "input_json_delta":
            self._partial[index] = self._partial.get(index, "") + (delta.get("partial_json") or "")
        elif kind == "citations_delta":
            block["citations"] = [*(block.get("citations") or []), delta.get("citation")]

    def build(self) -> Any | None:
        if self._message is None:
            return None
        content = [self._block(i) for i in sorted(self._blocks)]
        return {**self._message, "content": content or self._message.get("content") or []}

    def _block(self, index: int) -> Json:
        block = self._blocks[index]
        text = self._partial.get(index, "")
        if not text.strip():
            return block
        try:
            value, exact = decode(text.encode("utf-8", "surrogatepass"))
        except (NotJsonError, TooDeepError):
            # Cut in the middle of the arguments: keep what was served, under its own name.
            return {**block, "partial_json": text}
        self._exact = self._exact and exact
        return {**block, "input": value}
