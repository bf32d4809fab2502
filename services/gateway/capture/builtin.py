"""Capture from the built-in policy: asked for by a header, answered beside the response, removed for the client.

Not streamed, the policy adds a last top-level key `"clawback":{...}`. Streamed, it adds one event
`data: {"object":"clawback.capture","clawback":{...}}` right before `data: [DONE]`. Both are cut out of the bytes; the
rest stays as it was.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from libs.contracts import Capture
from libs.errors import ContractError

HEADER = "x-clawback-capture"
PATHS = frozenset({"/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"})
_MARKER = b'data:{"object":"clawback.capture"'
_SPACE = re.compile(rb"[ \t]+")
_NAME = b'"clawback"'
_COLON = re.compile(rb"\s*:\s*")


class BuiltinCapture:
    """What came beside one response."""

    def __init__(self, body: bytes) -> None:
        self.body = body
        self._at_start = True  # of an event
        self._held = b""
        self._line_tail = b""
        self.capture: Capture | None = None
        self.release_id: str | None = None
        self.broken = False

    def strip(self, body: bytes) -> bytes:
        """A whole response without its `clawback` key, if that is the last key of the outermost object."""
        at = body.rfind(_NAME)
        while at >= 0:
            colon = _COLON.match(body, at + len(_NAME))
            end = body.rstrip()
            if colon and end.endswith(b"}"):
                try:
                    value = msgspec.json.decode(end[colon.end() : -1])
                except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                    value = None  # more than one value follows: not the last key
                if isinstance(value, dict):
                    self._take(value)
                    return body[:at].rstrip().removesuffix(b",").rstrip() + body[len(end) - 1 :]
            at = body.rfind(_NAME, 0, at)
        return body

    def feed(self, chunk: bytes) -> bytes:
        """The bytes of a stream that may go to the client now. Holds back only what may be the capture event."""
        data = self._held + chunk
        self._held = b""
        out: list[bytes] = []
        while data:
            if not self._at_start:
                cut = data.find(b"\n\n")
                # The blank line may be split over two pieces.
                if self._line_tail == b"\n" and data[:1] == b"\n":
                    cut = -2
                if cut == -1:
                    out.append(data)
                    self._line_tail = data[-1:]
                    return b"".join(out)
                end = 1 if cut == -2 else cut + 2
                out.append(data[:end])
                data, self._at_start, self._line_tail = data[end:], True, b""
                continue
            verdict = _is_capture(data)
            if verdict is False:
                self._at_start = False
                continue
            end = data.find(b"\n\n")
            if verdict is None or end < 0:
                self._held = data
                break
            self._take_event(data[:end])
            data = data[end + 2 :]
        return b"".join(out)

    def close(self) -> bytes:
        """What was held back when the stream ended: a capture event without its end is dropped, the rest is not."""
        held, self._held = self._held, b""
        if _is_capture(held):
            self._take_event(held)
            return b""
        return held

    def _take_event(self, event: bytes) -> None:
        try:
            payload = msgspec.json.decode(event.partition(b":")[2])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            self.broken = True
            return
        self._take(payload.get("clawback") if isinstance(payload, dict) else None)

    def _take(self, value: Any) -> None:
        if not isinstance(value, dict):
            return
        release = value.get("release_id")
        self.release_id = release if isinstance(release, str) else None
        if value.get("capture") is None:
            return
        try:
            capture = msgspec.convert(value["capture"], Capture)
            capture.check()
        except (msgspec.ValidationError, ContractError):
            self.broken = True  # the client's answer is fine; only training loses this turn
        else:
            self.capture = capture


def _is_capture(data: bytes) -> bool | None:
    """Whether an event that starts with `data` is the capture; None when more bytes are needed to say."""
    head = _SPACE.sub(b"", data[:64])
    if head.startswith(_MARKER):
        return True
    return None if _MARKER.startswith(head) else False
