"""Token ids to text as they arrive, and stop strings.

Nothing is given out that a later token could change: not half a character, not a beginning of a stop string.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

Decode = Callable[[Sequence[int]], str]


class TextStream:
    """Text of one growing token sequence. `push` returns what may be shown now; `finish` returns the rest."""

    def __init__(self, decode: Decode, stops: Sequence[str] = ()) -> None:
        self._decode, self._stops = decode, tuple(stops)
        self._ids: list[int] = []
        self._start = 0  # decoding begins here: a few tokens back, so that joins come out right
        self._read = 0  # tokens whose text was taken
        self._held = ""  # text that may still turn out to be a stop string
        self.stopped = False

    def push(self, token: int) -> str:
        """Add a token; returns new text, maybe empty. After a stop string `stopped` is set and text ends before it."""
        self._ids.append(token)
        return self._take(self._new_text(final=False))

    def finish(self) -> str:
        """The text still held back."""
        if self.stopped:
            return ""
        text = self._take(self._new_text(final=True))
        if self.stopped:
            return text
        held, self._held = self._held, ""
        return text + held

    def _new_text(self, *, final: bool) -> str:
        before = self._decode(self._ids[self._start : self._read])
        now = self._decode(self._ids[self._start :])
        if len(now) <= len(before) or (now.endswith("�") and not final):
            return ""
        self._start, self._read = self._read, len(self._ids)
        return now[len(before) :]

    def _take(self, new: str) -> str:
        if not self._stops:
            return new
        text = self._held + new
        hits = [at for stop in self._stops if (at := text.find(stop)) >= 0]
        if hits:
            self.stopped, self._held = True, ""
            return text[: min(hits)]
        keep = max((_overlap(text, stop) for stop in self._stops), default=0)
        cut = len(text) - keep
        self._held = text[cut:]
        return text[:cut]


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that is a proper beginning of `stop`."""
    for size in range(min(len(stop) - 1, len(text)), 0, -1):
        if text.endswith(stop[:size]):
            return size
    return 0
