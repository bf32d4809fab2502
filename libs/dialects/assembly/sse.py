"""Server-sent events, fed in whatever pieces the network delivers (WHATWG HTML, section 9.2.6)."""

from __future__ import annotations

from dataclasses import dataclass

_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Event:
    """One dispatched event: its name ("" when unnamed) and its data lines joined by newlines."""

    name: str
    data: bytes


class SseParser:
    """Any chunking of the same bytes gives the same events. Comments and fields other than event/data are skipped."""

    def __init__(self) -> None:
        self._tail = b""  # the line that has not ended yet
        self._more: list[bytes] = []  # what came of that line since: joined once, when it ends
        self._started = False
        self._name = b""
        self._data: list[bytes] = []

    def feed(self, chunk: bytes) -> list[Event]:
        """The events that this piece completes."""
        if self._started and b"\n" not in chunk and b"\r" not in chunk and not self._tail.endswith(b"\r"):
            self._more.append(chunk)
            return []
        buffer = b"".join([self._tail, *self._more, chunk])
        self._more.clear()
        if not self._started:
            if len(buffer) < len(_BOM) and _BOM.startswith(buffer):
                self._tail = buffer
                return []
            buffer = buffer.removeprefix(_BOM)
            self._started = True
        if b"\r" in buffer:
            # A CR at the very end may be half of a CRLF: wait for the next piece.
            held = b"\r" if buffer.endswith(b"\r") else b""
            buffer = buffer[: len(buffer) - len(held)].replace(b"\r\n", b"\n").replace(b"\r", b"\n") + held
        lines = buffer.split(b"\n")
        self._tail = lines.pop()
        return [event for line in lines if (event := self._line(line)) is not None]

    def close(self) -> list[Event]:
        """The events that the end of the stream completes: a last event that lacks its blank line counts.

        The standard drops it, but servers that forget the blank line after `[DONE]` are common.
        """
        tail, self._tail = b"".join([self._tail, *self._more]), b""
        self._more.clear()
        return [event for line in (tail.rstrip(b"\r"), b"") if (event := self._line(line)) is not None]

    def _line(self, line: bytes) -> Event | None:
        if not line:
            if not self._data:
                self._name = b""
                return None
            event = Event(self._name.decode("utf-8", "replace"), b"\n".join(self._data))
            self._name, self._data = b"", []
            return event
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            self._data.append(value)
        elif field == b"event":
            self._name = value
        return None
