"""The Redis script gives what the memory store gives, record by record, and keeps to its promises as a server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from libs.contracts import TrafficRaw, encode
from libs.errors import RetryError
from libs.matching.matcher import Matcher, Outcome
from libs.matching.memory import MemoryStore
from libs.matching.plan import Limits
from libs.streams.sessions import Call, ScriptStore
from services.matcher.state import RedisState
from tests.unit.matching import test_classes, test_identity, test_repeats, test_rewrites, test_state
from tests.unit.matching.talk import PLAN, World, said, user
from tests.unit.matching.traffic import traffics

pytestmark = pytest.mark.integration
TIGHT = Limits(
    ttl_seconds=4.0, max_sessions=2, max_turns=3, max_session_bytes=3_000, earlier_turns=2, earlier_bytes=900
)


class Counting:
    """Counts the calls of the script: one is one round trip."""

    def __init__(self, inner: ScriptStore) -> None:
        self.inner = inner
        self.calls = 0

    async def run_all(self, calls: Sequence[Call]) -> list[Any]:
        self.calls += len(calls)
        return await self.inner.run_all(calls)


@pytest.fixture
async def scripts(redis_url: str) -> AsyncIterator[ScriptStore]:
    store = ScriptStore(redis_url)
    yield store
    await store.close()


async def compared(scripts: ScriptStore, records: Sequence[TrafficRaw], limits: Limits) -> None:
    """Feed records to both; every output must be the same, the same again on redelivery, and the same for records that
    come at once and so share calls of the script."""
    ours, theirs = Matcher(MemoryStore(), limits), Matcher(RedisState(scripts), limits)
    expected = [await ours.match(record) for record in records]
    for record, outcome in zip(records, expected, strict=True):
        for _ in range(2):
            assert_same(await theirs.match(record), outcome)
    await scripts.redis.flushdb()
    together = await asyncio.gather(*(theirs.match(record) for record in records))
    for got, outcome in zip(together, expected, strict=True):
        assert_same(got, outcome)


def assert_same(got: Outcome, expected: Outcome) -> None:
    assert [encode(c) for c in got.classified] == [encode(c) for c in expected.classified]
    assert [encode(b) for b in got.bindings] == [encode(b) for b in expected.bindings]


@pytest.mark.parametrize("limits", [Limits(), TIGHT], ids=["default", "tight"])
def test_every_kind_of_traffic(redis_url: str, limits: Limits, monkeypatch: pytest.MonkeyPatch) -> None:
    """All the worlds that the unit tests build, replayed on both stores."""
    worlds: list[World] = []
    build = World.__post_init__

    def remembered(self: World) -> None:
        build(self)
        worlds.append(self)

    monkeypatch.setattr(World, "__post_init__", remembered)
    for module in (test_identity, test_repeats, test_rewrites, test_classes, test_state):
        for name, function in vars(module).items():
            if name.startswith("test_") and not getattr(function, "pytestmark", None):
                function()
    assert len(worlds) > 30

    async def run() -> None:
        store = ScriptStore(redis_url)
        for world in worlds:
            await store.redis.flushdb()
            await compared(store, world.records, limits)
        await store.close()

    asyncio.run(run())


@settings(
    max_examples=60, phases=[Phase.generate], deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)
@given(records=traffics(), tight=st.booleans(), data=st.data())
def test_generated_traffic_in_any_order(
    redis_url: str, records: list[TrafficRaw], tight: bool, data: st.DataObject
) -> None:
    import asyncio

    mixed = data.draw(st.permutations(records))

    async def run() -> None:
        store = ScriptStore(redis_url)
        try:
            await store.redis.flushdb()
            await compared(store, mixed, TIGHT if tight else Limits())
        finally:
            await store.close()

    asyncio.run(run())


async def test_one_round_trip_per_exchange_and_a_ttl_on_every_key(scripts: ScriptStore) -> None:
    counting = Counting(scripts)
    matcher = Matcher(RedisState(counting))
    w = World()
    w.exchange([user("One.")], PLAN, match=False)
    w.exchange([user("One."), said(PLAN), user("Two.")], PLAN, match=False, headers={"x-session-id": "s"})
    w.exchange([user("Other."), said("never served here"), user("Two.")], PLAN, match=False)
    for record in w.records:
        await matcher.match(record)
    assert counting.calls == 3
    keys = [k.decode() for k in await scripts.redis.keys("*")]
    assert keys
    tags = {k[k.index("{") : k.index("}") + 1] for k in keys}
    assert len(tags) == 1, "one hash tag, so that Redis Cluster holds them on one node"
    assert all([await scripts.redis.ttl(k) > 0 for k in keys])


async def test_a_restarted_server_loads_the_script_again(scripts: ScriptStore) -> None:
    matcher = Matcher(RedisState(scripts))
    w = World()
    w.exchange([user("One.")], PLAN, match=False)
    w.exchange([user("One."), said(PLAN), user("Two.")], PLAN, match=False)
    await matcher.match(w.records[0])
    await scripts.redis.script_flush()
    assert (await matcher.match(w.records[1])).result.turn == "x0001"


async def test_calls_that_wait_together_go_out_together(scripts: ScriptStore) -> None:
    """Also when the server has lost the script, and when it is away."""
    w = World()
    for n in range(40):
        w.exchange([user(f"Opening {n}.")], PLAN, tenant=f"t{n % 3}", match=False)
    await scripts.redis.script_flush()
    before = (await scripts.redis.info("stats"))["total_reads_processed"]
    counting = Counting(scripts)
    matcher = Matcher(RedisState(counting))
    outcomes = await asyncio.gather(*(matcher.match(r) for r in w.records))
    assert [o.classified[0].exchange_id for o in outcomes] == [r.exchange_id for r in w.records]
    again = await asyncio.gather(*(matcher.match(r) for r in w.records))
    assert [o.classified for o in again] == [o.classified for o in outcomes]
    assert (await scripts.redis.info("stats"))["total_reads_processed"] - before < 40
    assert counting.calls == 2 * 2 * 3, "twice the records, of three tenants, in two batches"
    away = ScriptStore("redis://127.0.0.1:1/0", timeout_seconds=0.2)
    results = await asyncio.gather(*(Matcher(RedisState(away)).match(r) for r in w.records[:3]), return_exceptions=True)
    assert [type(r) for r in results] == [RetryError] * 3
    await away.close()


async def test_tenants_lie_under_different_hash_tags(scripts: ScriptStore) -> None:
    matcher = Matcher(RedisState(scripts))
    w = World()
    for tenant, scenario in (("a", "x"), ("b", "x"), ("a", "y")):
        w.exchange([user("One.")], PLAN, tenant=tenant, scenario=scenario, match=False)
    for record in w.records:
        await matcher.match(record)
    keys = [k.decode() for k in await scripts.redis.keys("*:lru")]
    assert len(keys) == 3


async def test_turns_that_expired_by_themselves_count_no_longer_against_their_sessions_bytes(
    scripts: ScriptStore,
) -> None:
    """A session in use outlives its first turns: what they held must not push the newest ones out."""
    limits = Limits(max_session_bytes=6_000)
    matcher = Matcher(RedisState(scripts), limits)
    w = World(limits=limits)
    named = {"x-session-id": "s"}
    for n in range(10):
        w.exchange([user("x" * 900 + str(n))], f"{PLAN} {n}", headers=named, match=False)
        await matcher.match(w.records[-1])
        if n == 4:
            for key in await scripts.redis.keys("*:h:*"):
                await scripts.redis.unlink(key)
    asked = [user("x" * 900 + "7"), said(f"{PLAN} 7"), user("No lists, please.")]
    w.exchange(asked, "As prose, then.", headers=named, match=False)
    assert (await matcher.match(w.records[-1])).result.turn == "x0008"
