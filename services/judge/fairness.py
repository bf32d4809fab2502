"""A bounded number of turns at the judge at once, shared fairly: scenarios take turns, whoever has more waiting."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class FairSlots:
    """`limit` slots. A scenario with a thousand turns waiting delays another one's next turn by one, not by all."""

    def __init__(self, limit: int) -> None:
        self._free = limit
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    @asynccontextmanager
    async def hold(self, scenario: str) -> AsyncIterator[None]:
        """Hold one slot. Cancelling a waiter gives its place up."""
        await self._take(scenario)
        try:
            yield
        finally:
            self._free += 1
            self._hand_on()

    async def _take(self, scenario: str) -> None:
        if self._free > 0 and not self._waiting:
            self._free -= 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(scenario, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # was handed the slot in the same moment
                self._free += 1
            else:
                self._forget(scenario, turn)
            self._hand_on()
            raise

    def _hand_on(self) -> None:
        while self._free > 0 and self._waiting:
            scenario, queue = next(iter(self._waiting.items()))
            turn = queue.popleft()
            # To the back of the ring: every other scenario that waits comes first.
            self._waiting.pop(scenario)
            if queue:
                self._waiting[scenario] = queue
            if not turn.done():
                self._free -= 1
                turn.set_result(None)

    def _forget(self, scenario: str, turn: asyncio.Future[None]) -> None:
        queue = self._waiting.get(scenario)
        if queue is not None and turn in queue:
            queue.remove(turn)
            if not queue:
                del self._waiting[scenario]
