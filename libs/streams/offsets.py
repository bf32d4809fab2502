"""Which offset of a partition may be committed: the first one that is not done. Pure; no broker in here.

Offsets have holes (compaction, transaction markers), so nothing assumes that offset + 1 exists: what was dispatched is
kept in a queue, and the position is the head of that queue, or one past the newest done record when it is empty.
"""

from __future__ import annotations

from collections import OrderedDict


class OffsetTracker:
    """The dispatched records of one partition. O(1) amortised per record.

    `position` is the next offset to commit, or None while nothing was finished since the assignment.
    """

    __slots__ = ("_open", "position")

    def __init__(self) -> None:
        self._open: OrderedDict[int, bool] = OrderedDict()  # offset -> done, in dispatch order
        self.position: int | None = None

    def __len__(self) -> int:
        return len(self._open)

    def add(self, offset: int) -> bool:
        """Take note of a dispatched record. False when it is already open (delivered twice within one assignment)."""
        if offset in self._open:
            return False
        if self._open and offset < next(reversed(self._open)):
            raise ValueError(f"offset {offset} was dispatched after {next(reversed(self._open))}")
        self._open[offset] = False
        return True

    def is_open(self, offset: int) -> bool:
        """Whether the record was dispatched and is not done."""
        return self._open.get(offset) is False

    def first_open(self, besides: int) -> int | None:
        """The first record that is not done, one apart; None when there is no other."""
        return next((o for o, finished in self._open.items() if not finished and o != besides), None)

    def done(self, offset: int) -> bool:
        """Mark a record done. False when it is not open here (another assignment's record, or done before)."""
        if self._open.get(offset) is not False:
            return False
        self._open[offset] = True
        while self._open:
            head, finished = next(iter(self._open.items()))
            if not finished:
                self.position = head
                return True
            del self._open[head]
            self.position = head + 1
        return True
