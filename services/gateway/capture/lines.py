"""A filter over the data lines of an event stream, for upstreams that put the capture into their ordinary chunks."""

from __future__ import annotations

from collections.abc import Callable


class DataLines:
    """Gives whole `data:` lines to `rewrite` and everything else back as it came, however the stream is cut."""

    def __init__(self, rewrite: Callable[[bytes], bytes]) -> None:
        self._rewrite = rewrite
        self._tail: list[bytes] = []  # pieces of the line that has not ended yet

    def feed(self, chunk: bytes) -> bytes:
        """The bytes that may go on now; an unfinished line waits for its end."""
        if b"\n" not in chunk:
            self._tail.append(chunk)
            return b""
        whole, _, tail = b"".join([*self._tail, chunk]).rpartition(b"\n")
        self._tail = [tail]
        return b"".join(self._line(line) + b"\n" for line in whole.split(b"\n"))

    def close(self) -> bytes:
        """The last line, if it had no end."""
        tail = b"".join(self._tail)
        self._tail.clear()
        return self._line(tail)

    def _line(self, line: bytes) -> bytes:
        if not line.startswith(b"data:"):
            return line
        head = b"data: " if line.startswith(b"data: ") else b"data:"
        payload = line[len(head) :]
        end = b"\r" if payload.endswith(b"\r") else b""
        payload = payload[: len(payload) - len(end)]
        return line if payload.strip() in (b"", b"[DONE]") else head + self._rewrite(payload) + end
