"""The matching state behind a Redis connection."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Protocol

from libs.matching import state
from libs.matching.plan import Limits, Plan, Result
from libs.streams.sessions import Call, Script

_MOST_BYTES = 1024 * 1024  # of requests and replies that go out together

_Waiting = tuple[Plan, Limits, "asyncio.Future[Result]"]


class ScriptCalls(Protocol):
    """What the state needs of Redis; ScriptStore has it."""

    async def run_all(self, calls: Sequence[Call]) -> list[Any]: ...


class RedisState:
    """libs.matching.matcher.StateStore on Redis. Raises RetryError while Redis is away, StopError for a script fault.

    Exchanges that wait at the same time share a round trip, those of one slot also a call of the script, which takes
    them one after another. An exchange that waits alone goes out at once.
    """

    def __init__(self, store: ScriptCalls, most: int = 32) -> None:
        self._store = store
        self._most = most
        self._script = Script(state.SCRIPT)
        self._waiting: list[_Waiting] = []
        self._sender: asyncio.Task[None] | None = None

    async def apply(self, plan: Plan, limits: Limits) -> Result:
        """Atomic; see StateStore."""
        result: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._waiting.append((plan, limits, result))
        if self._sender is None or self._sender.done():
            self._sender = asyncio.create_task(self._send_all())
        return await result

    async def _send_all(self) -> None:
        while self._waiting:
            batch = self._next_batch()
            groups: dict[tuple[str, Limits], list[_Waiting]] = {}
            for one in batch:
                groups.setdefault((one[0].slot, one[1]), []).append(one)
            try:
                replies = await self._store.run_all([self._call(group) for group in groups.values()])
            except Exception as error:  # every caller must hear of it
                replies = [error] * len(groups)
            for group, reply in zip(groups.values(), replies, strict=True):
                _settle(group, reply)

    def _next_batch(self) -> list[_Waiting]:
        """The longest waiting ones: so many that the server is not held up for long by them."""
        count, size = 0, 0
        for plan, _, _ in self._waiting[: self._most]:
            if count and size + len(plan.heavy) > _MOST_BYTES:
                break
            count, size = count + 1, size + len(plan.heavy)
        batch, self._waiting = self._waiting[:count], self._waiting[count:]
        return batch

    def _call(self, group: Sequence[_Waiting]) -> Call:
        plan, limits, _ = group[0]
        return self._script, [state.key_prefix(plan.slot)], state.arguments([one[0] for one in group], limits)


def _settle(group: Sequence[_Waiting], reply: Any) -> None:
    """Hand each caller its part of the reply."""
    if isinstance(reply, Exception):
        for _, _, waiting in group:
            if not waiting.done():
                waiting.set_exception(reply)
        return
    for (_, _, waiting), part in zip(group, reply, strict=True):
        if not waiting.done():
            waiting.set_result(state.result(part))
