"""A filter over the data lines of an event stream, for upstreams that put the capture into their ordinary chunks."""

from __future__ import annotations

from collections.abc import Callable

MOST_LINE_BYTES = 16 * 2**20  # what one event of an engine never has


class DataLines:
    """Gives whole `data:` lines to `rewrite` and everything else back as it came, however the stream is cut.

    A line of over MOST_LINE_BYTES is not kept: it goes on as it comes, and `overlong` says that it was not rewritten.
    """

    def __init__(self, rewrite: Callable[[bytes], bytes]) -> None:
        self._rewrite = rewrite
        self._tail: list[bytes] = []  # pieces of the line that has not ended yet
        self._bytes = 0  # in them
        self._passing = False  # the rest of an overlong line
        self.overlong = False

    def feed(self, chunk: bytes) -> bytes:
        """The bytes that may go on now; an unfinished line waits for its end."""
        passed = b""
        if self._passing:
            end = chunk.find(b"\n") + 1 or len(chunk)
            self._passing = b"\n" not in chunk
            passed, chunk = chunk[:end], chunk[end:]
        if b"\n" not in chunk:
            return passed + self._wait(chunk)
        whole, _, tail = b"".join([*self._tail, chunk]).rpartition(b"\n")
        self._tail, self._bytes = [], 0
        return passed + b"".join(self._line(line) + b"\n" for line in whole.split(b"\n")) + self._wait(tail)

    def _wait(self, piece: bytes) -> bytes:
        """Keep a piece of a line; returns what was kept once that is too much."""
        self._tail.append(piece)
        self._bytes += len(piece)
        if self._bytes <= MOST_LINE_BYTES:
            return b""
        kept = b"".join(self._tail)
        self._tail, self._bytes = [], 0
        self._passing = self.overlong = True
        return kept

    def close(self) -> bytes:
        """The last line, if it had no end."""
        tail = b"".join(self._tail)
        self._tail, self._bytes = [], 0
        return self._line(tail)

    def _line(self, line: bytes) -> bytes:
        if not line.startswith(b"data:"):
            return line
        head = b"data: " if line.startswith(b"data: ") else b"data:"
        payload = line[len(head) :]
        end = b"\r" if payload.endswith(b"\r") else b""
        payload = payload[: len(payload) - len(end)]
        return line if payload.strip() in (b"", b"[DONE]") else head + self._rewrite(payload) + end
