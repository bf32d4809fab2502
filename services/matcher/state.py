"""The matching state behind a Redis connection: one script call per exchange."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from libs.matching import state
from libs.matching.plan import Limits, Plan, Result
from libs.streams.sessions import Call, Script, Scripts, ScriptStore


class RedisState:
    """libs.matching.matcher.StateStore on Redis. Raises RetryError while Redis is away."""

    def __init__(self, scripts: Scripts) -> None:
        self._scripts = scripts
        self._script = Script(state.SCRIPT)

    async def apply(self, plan: Plan, limits: Limits) -> Result:
        """One EVALSHA, atomic."""
        reply = await self._scripts.run(self._script, [state.key_prefix(plan.slot)], state.arguments(plan, limits))
        return state.result(reply)


class Batched:
    """Script calls that wait at the same time go out in one pipeline; a call that waits alone goes out at once.

    One exchange is still one call. What is saved is the client's work per round trip, about half of it.
    """

    def __init__(self, store: ScriptStore, most: int = 32) -> None:
        self._store = store
        self._most = most
        self._waiting: list[tuple[Call, asyncio.Future[Any]]] = []
        self._sender: asyncio.Task[None] | None = None

    async def run(self, script: Script, keys: Sequence[str], args: Sequence[str | bytes | int | float]) -> Any:
        """As ScriptStore.run. Raises RetryError, StopError (script fault)."""
        reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append(((script, keys, args), reply))
        if self._sender is None or self._sender.done():
            self._sender = asyncio.create_task(self._send_all())
        return await reply

    async def _send_all(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting[: self._most], self._waiting[self._most :]
            try:
                replies = await self._store.run_all([call for call, _ in batch])
            except Exception as error:  # every caller must hear of it
                replies = [error] * len(batch)
            for (_, waiting), reply in zip(batch, replies, strict=True):
                if waiting.done():
                    continue
                if isinstance(reply, Exception):
                    waiting.set_exception(reply)
                else:
                    waiting.set_result(reply)
