"""What the judge keeps in Redis: ballots by content, and the tokens each scenario has used in its window.

Both only save calls and money. Redis away: no ballots are found, and the budget counts in this process alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import msgspec

from libs.errors import RetryError
from libs.feedback.judge import Ballot
from libs.streams.sessions import ScriptStore
from libs.telemetry import metrics
from libs.telemetry.logs import get_logger

_log = get_logger("judge.state")


class RedisBallots:
    """A BallotStore with a TTL. Key: clawback:judge:ballots:<question key>."""

    def __init__(self, store: ScriptStore, ttl_seconds: int, *, at_once: int = 32) -> None:
        self._store = store
        self._ttl = ttl_seconds
        # No more than the pool has connections: waiting for one there would time out and look like an outage of Redis.
        self._gate = asyncio.Semaphore(at_once)

    async def get(self, key: str) -> list[Ballot] | None:
        try:
            async with self._gate, self._store.errors():
                found = await self._store.redis.get(_ballots_key(key))
        except RetryError as error:
            _log.warning("no cached votes", error=str(error))
            found = None
        metrics.JUDGE_CACHE.labels("hit" if found else "miss").inc()
        if not found:
            return None
        try:
            return msgspec.json.decode(found, type=list[Ballot])
        except msgspec.DecodeError:
            return None  # of another release; asked again

    async def put(self, key: str, ballots: Sequence[Ballot]) -> None:
        try:
            async with self._gate, self._store.errors():
                await self._store.redis.set(_ballots_key(key), msgspec.json.encode(list(ballots)), ex=self._ttl)
        except RetryError as error:
            _log.warning("votes not cached", error=str(error))


class TokenBudget:
    """Judge tokens per scenario and window, shared by all judges through Redis; `limit` 0 means no bound.

    `now` gives unix seconds. Checked before a turn, charged after it: a turn in flight may overrun the limit once.
    """

    def __init__(self, store: ScriptStore | None, limit: int, window_seconds: float, now: Callable[[], float]) -> None:
        self._store = store
        self._limit = limit
        self._window = window_seconds
        self._now = now
        self._here: dict[str, int] = {}

    async def left(self, scenario: str) -> bool:
        if not self._limit:
            return True
        key = self._key(scenario)
        used = self._here.get(key, 0)
        if self._store is not None:
            try:
                async with self._store.errors():
                    used = max(used, int(await self._store.redis.get(key) or 0))
            except RetryError as error:
                _log.warning("budget counts here only", error=str(error))
        return used < self._limit

    async def charge(self, scenario: str, tokens: int) -> None:
        metrics.JUDGE_TOKENS.labels(scenario).inc(tokens)
        if not self._limit or not tokens:
            return
        key = self._key(scenario)
        self._here = {k: n for k, n in self._here.items() if k.rsplit(":", 1)[1] == key.rsplit(":", 1)[1]}
        self._here[key] = self._here.get(key, 0) + tokens
        if self._store is None:
            return
        try:
            async with self._store.errors():
                pipe = self._store.redis.pipeline()
                pipe.incrby(key, tokens)
                pipe.expire(key, int(self._window * 2) + 1)
                await pipe.execute()
        except RetryError as error:
            _log.warning("budget counts here only", error=str(error))

    def _key(self, scenario: str) -> str:
        return f"clawback:judge:tokens:{scenario}:{int(self._now() // self._window)}"


def _ballots_key(key: str) -> str:
    return f"clawback:judge:ballots:{key}"
