"""What of a person lies in Redis, and its removal. The layout is that of libs/matching/remember.lua."""

from __future__ import annotations

from typing import Any

from libs.matching.canonical import apart
from libs.matching.state import key_prefix
from libs.streams.config import ServiceSettings
from libs.streams.tap import sessions_of, tap

VOTES = "clawback:judge:ballots:*"
_TOPICS = ("traffic.raw", "exchanges.classified", "turns.matched", "turns.judged")


async def places(
    settings: ServiceSettings, session: str | None, tenant: str | None
) -> tuple[set[tuple[str, str]], list[str]]:
    """The (tenant, scenario) pairs under which the records have this session, or this tenant; and the exchanges of a
    session, which raw traffic does not name."""

    def names(record: Any) -> bool:
        whose = tenant is None or getattr(record, "tenant", None) == tenant
        return whose and (session is None or session in sessions_of(record))

    topics = [settings.input_topic(topic) for topic in _TOPICS]
    found = [t.record async for t in tap(settings, topics, where=names)]
    where: set[tuple[str, str]] = {(r.tenant, r.scenario) for r in found}  # type: ignore[union-attr]
    names_of = ("exchange_id", "turn_id", "answered_by")
    ids = {i for r in found for name in names_of if (i := getattr(r, name, None))} if session is not None else set()
    return where, sorted(ids)


async def forget_session(redis: Any, session: str, where: set[tuple[str, str]]) -> int:
    """Delete the session's exchanges with their bodies, and the session. Returns the number of keys removed."""
    removed = 0
    for tenant, scenario in where:
        prefix = key_prefix(apart(tenant, scenario))
        ids = [_text(i) for i in await _ids(redis, f"{prefix}e:{session}")]
        keys = [f"{prefix}{part}:{i}" for i in ids for part in ("x", "h")]
        removed += await redis.delete(*keys, f"{prefix}s:{session}", f"{prefix}e:{session}")
        await redis.zrem(f"{prefix}lru", session)
    return removed


async def forget_tenant(redis: Any, where: set[tuple[str, str]]) -> int:
    """Delete everything under the tenant's scenarios. Returns the number of keys removed."""
    removed = 0
    for owner, scenario in where:
        removed += await _delete(redis, f"{_escaped(key_prefix(apart(owner, scenario)))}*")
    return removed


async def forget_votes(redis: Any) -> int:
    """Empty the judge's cache: it is keyed by content, so nobody's part of it can be picked out. It only saves work."""
    return await _delete(redis, VOTES)


async def _ids(redis: Any, key: str) -> list[bytes]:
    """The members of the session's list of exchanges, whatever kind of key holds it."""
    kind = _text(await redis.type(key))
    if kind == "list":
        return list(await redis.lrange(key, 0, -1))
    if kind == "zset":
        return list(await redis.zrange(key, 0, -1))
    if kind == "set":
        return list(await redis.smembers(key))
    return []


async def _delete(redis: Any, pattern: str) -> int:
    removed = 0
    batch: list[bytes] = []
    async for key in redis.scan_iter(match=pattern, count=500):
        batch.append(key)
        if len(batch) >= 500:
            removed += await redis.unlink(*batch)
            batch.clear()
    return removed + (await redis.unlink(*batch) if batch else 0)


def _escaped(prefix: str) -> str:
    return "".join(f"\\{c}" if c in "*?[]\\" else c for c in prefix)


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
