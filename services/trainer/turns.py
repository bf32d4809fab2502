"""Taking turns: one holder at a time, and among the scenarios that wait, the one served longest ago is next."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class FairTurns:
    """Within one scenario the order of arrival holds."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        self._last_turn: dict[str, int] = {}
        self._count = 0
        self._busy = False

    @asynccontextmanager
    async def turn(self, scenario: str) -> AsyncIterator[None]:
        """Hold the only turn."""
        if self._busy:
            ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.setdefault(scenario, deque()).append(ready)
            try:
                await ready
            except asyncio.CancelledError:
                if ready.done() and not ready.cancelled():
                    self._pass_on()
                raise
        self._busy = True
        self._count += 1
        self._last_turn[scenario] = self._count
        try:
            yield
        finally:
            self._pass_on()

    def _pass_on(self) -> None:
        """Wake the next one; the turn stays taken meanwhile, so that nobody slips in between."""
        for scenario in sorted(self._waiting, key=lambda s: self._last_turn.get(s, 0)):
            queue = self._waiting[scenario]
            while queue:
                ready = queue.popleft()
                if not ready.done():
                    ready.set_result(None)
                    return
            del self._waiting[scenario]
        self._busy = False
