"""The straightforward matcher, for comparison alone: it looks at every open session for each request.

A request answers an open session's reply when it extends that session's last request, with an assistant message next
(by role alone, as the public reference has it).
"""

from __future__ import annotations

from libs.contracts import TrafficRaw

Key = tuple[str, str]


class Scan:
    """Open sessions as lists of message keys."""

    def __init__(self) -> None:
        self._open: list[tuple[str, list[Key]]] = []

    def open(self, record: TrafficRaw) -> None:
        """A session that is known to be new."""
        self._open.append((record.exchange_id, _keys(record)))

    def match(self, record: TrafficRaw) -> str | None:
        """The exchange whose reply is answered, or None for a new session."""
        keys = _keys(record)
        found = -1
        for number, (_, seen) in enumerate(self._open):
            n = len(seen)
            if len(keys) > n + 1 and keys[:n] == seen and keys[n][0] == "assistant":
                found = number
        if found < 0:
            self._open.append((record.exchange_id, keys))
            return None
        turn = self._open[found][0]
        self._open[found] = (record.exchange_id, keys)
        return turn


def _keys(record: TrafficRaw) -> list[Key]:
    return [(str(m.get("role")), str(m.get("content"))) for m in record.request["messages"]]
