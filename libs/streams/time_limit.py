"""One time limit for many pieces of work. asyncio.timeout sets and clears a timer for each piece, which costs a record
more than all else that the loop does for it; here one timer watches over all of them.
"""

from __future__ import annotations

import asyncio
from types import TracebackType


class TimeLimit:
    """`with limit.watch():` around awaits: they are cancelled after `seconds`, and TimeoutError leaves the block.

    A cancellation from elsewhere passes through, as with asyncio.timeout.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._running: dict[Watched, float] = {}  # -> when it ends; the same time for each, so the oldest ends first
        self._timer: asyncio.TimerHandle | None = None

    def watch(self) -> Watched:
        """A block of the current task, which begins with `with`."""
        return Watched(self)

    def _begin(self, one: Watched, loop: asyncio.AbstractEventLoop) -> None:
        end = self._running[one] = loop.time() + self.seconds
        if self._timer is None:
            self._timer = loop.call_at(end, self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        """End what is over its time, and look again when the next one would be."""
        self._timer = None
        now = loop.time()
        while self._running:
            one, end = next(iter(self._running.items()))
            if end > now:
                self._timer = loop.call_at(end, self._look, loop)
                return
            del self._running[one]
            one.expire()


class Watched:
    """A block under a limit. `expired` says whether the limit ended it."""

    __slots__ = ("_cancelling", "_limit", "_task", "expired")

    def __init__(self, limit: TimeLimit) -> None:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a time limit watches over a task; there is none")
        self._limit = limit
        self._task = task
        self.expired = False

    def __enter__(self) -> Watched:
        self._cancelling = self._task.cancelling()
        self._limit._begin(self, self._task.get_loop())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._limit._running.pop(self, None)
        if self.expired and self._task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise TimeoutError from error

    def expire(self) -> None:
        """End the block."""
        self.expired = True
        self._task.cancel()
