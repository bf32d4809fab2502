"""dead-letters, releases, rollback, promote, forget and replay against a real broker and a real Redis."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiokafka import AIOKafkaProducer
from click.testing import CliRunner
from redis.asyncio import Redis

from libs.cli.commands import dead_letters, forget, promote, releases, replay, rollback
from libs.contracts import Adapter, DeadLetter, PolicyRelease, Record, Tombstone, encode
from libs.matching.canonical import apart
from libs.matching.state import key_prefix
from libs.streams.config import ServiceSettings
from libs.streams.tap import tap
from tests.monitor_records import Talk

pytestmark = pytest.mark.integration
T0 = 1_700_000_000.0


@pytest.fixture
def settings(
    kafka_env: dict[str, str],
    topic_suffix: str,
    redis_url: str,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> ServiceSettings:
    env = kafka_env | {"CLAWBACK_STREAM_INPUT_SUFFIX": topic_suffix, "CLAWBACK_REDIS_URL": redis_url}
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    return ServiceSettings()


@pytest.fixture
async def send(settings: ServiceSettings) -> AsyncIterator[Any]:
    producer = AIOKafkaProducer(bootstrap_servers=settings.kafka_bootstrap_servers)
    await producer.start()

    async def send(topic: str, *records: Record, key: bytes = b"k") -> None:
        for record in records:
            await producer.send_and_wait(settings.input_topic(topic), key=key, value=encode(record))

    yield send
    await producer.stop()


async def cli(command: Any, *args: str, code: int = 0) -> str:
    result = await asyncio.to_thread(CliRunner().invoke, command, list(args))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        assert code != 0, result.exception
        return str(result.exception)
    assert result.exit_code == code, result.output
    return result.output


async def all_of(settings: ServiceSettings, topic: str) -> list[Any]:
    return [t.record async for t in tap(settings, [topic])]


def letter(settings: ServiceSettings, offset: int, reason: str = "contract", value: bytes = b'{"n": 1}') -> DeadLetter:
    return DeadLetter(
        dead_letter_id=f"turns.matched-0-{offset}",
        service="judge",
        source_topic=settings.input_topic("turns.matched"),
        source_partition=0,
        source_offset=offset,
        reason=reason,
        error="it broke",
        attempts=5,
        failed_at=T0 + offset,
        key=base64.b64encode(b"session").decode(),
        value=base64.b64encode(value).decode(),
    )


async def test_dead_letters_are_listed_shown_and_sent_again(settings: ServiceSettings, send: Any) -> None:
    talk = Talk("s", ["a", "b"], T0)
    await send(
        "dead.letters",
        letter(settings, 1, value=encode(talk.matched(1))),
        letter(settings, 2, reason="too_few_votes"),
        letter(settings, 2, reason="too_few_votes"),
        letter(settings, 3, value=b""),
    )
    listed = await cli(dead_letters.command, "list")
    assert "judge/contract: 2  judge/too_few_votes: 1" in listed, "a letter written twice is one letter"
    assert "turns.matched-0-2" not in await cli(dead_letters.command, "list", "--reason", "contract")
    shown = json.loads(await cli(dead_letters.command, "show", "turns.matched-0-1"))
    assert json.loads(shown["value"])["turn_id"] == "s-0"
    assert shown["key"] == "session"

    assert "sent 1 again" in await cli(dead_letters.command, "retry", "turns.matched-0-1")
    assert [r.turn_id for r in await all_of(settings, settings.input_topic("turns.matched"))] == ["s-0"]
    assert "turns.matched-0-1" not in await cli(dead_letters.command, "list")
    assert "turns.matched-0-1" in await cli(dead_letters.command, "list", "--retried")
    assert "bytes were left out" in await cli(dead_letters.command, "retry", "--all", "--reason", "contract")
    await cli(dead_letters.command, "retry", "turns.matched-0-1", code=1)
    await cli(dead_letters.command, "retry", code=2)


def event(kind: Any, number: int, serving: str) -> PolicyRelease:
    return PolicyRelease(
        event=kind,
        release_id=f"hw@{number:05d}-batch{number:03d}",
        parent_id="base" if number == 1 else f"hw@{number - 1:05d}-batch{number - 1:03d}",
        serving=serving,
        scenario="hw",
        step=number,
        number=number,
        batch_id=f"batch{number:03d}",
        trained=[f"f{number}"],
        dropped={},
        reason="repetition" if kind == "held" else "",
        weights=Adapter(kind="lora", uri=f"/w/{number}", digest="0" * 64),
        metrics={"loss": 0.5, "gate_repetition": 0.61, "gate_serving_repetition": 0.16, "gate_signal": 1.0},
        created_at=T0 + number,
    )


async def test_releases_rollback_and_promote(settings: ServiceSettings, send: Any) -> None:
    one, two, three = (f"hw@{n:05d}-batch{n:03d}" for n in (1, 2, 3))
    await send(
        "policy.releases", event("released", 1, one), event("released", 2, two), event("held", 3, two), key=b"hw"
    )
    listed = await cli(releases.command)
    assert f"hw: serving {two}, held back: {three}" in listed
    assert "repetition 0.61 (0.16)  signal 1.00" in listed.splitlines()[3]
    assert listed.count("0.61") == 1, "the gate's figures stand under what it held back"
    assert len(json.loads(await cli(releases.command, "--json", "--scenario", "hw"))) == 3

    assert f"hw: {one} is to serve" in await cli(rollback.command, "hw")
    assert f"hw: serving {one}" in await cli(releases.command)
    assert f"hw: {three} is to serve" in await cli(promote.command, "hw", three)
    events = await all_of(settings, settings.input_topic("policy.releases"))
    assert [(e.event, e.serving) for e in events[3:]] == [("rolled_back", one), ("promoted", three)]
    assert events[3].weights == event("released", 1, one).weights, "the policy needs the weights to serve it"
    assert "not a held release" in await cli(promote.command, "hw", one, code=1)
    assert "no release nowhere" in await cli(rollback.command, "hw", "nowhere", code=1)
    assert "there are: hw" in await cli(rollback.command, "other", code=1)


def traffic(tenant: str, n: int = 2) -> list[Talk]:
    return [Talk(f"{tenant}-s{i}", ["Explain tides.", "No lists.", "Thanks."], T0 + i, tenant=tenant) for i in range(n)]


async def match(settings: ServiceSettings, talks: list[Talk]) -> list[Any]:
    """Run the real matcher on real Redis over raw traffic; returns the classified exchanges."""
    from libs.matching.matcher import Matcher
    from libs.streams.sessions import ScriptStore
    from libs.streams.types import StreamRecord
    from services.matcher.config import MatcherSettings
    from services.matcher.handler import MatchHandler
    from services.matcher.state import RedisState

    store = ScriptStore(settings.redis_url)
    handler = MatchHandler(Matcher(RedisState(store), MatcherSettings().limits()))  # type: ignore[call-arg]
    found = []
    for offset, record in enumerate(talk.raw(i) for talk in talks for i in range(3)):
        done = await handler.handle(StreamRecord("traffic.raw", 0, offset, b"k", encode(record)))
        found += [o for o in done.outputs if o.topic.startswith("exchanges.classified")]  # type: ignore[union-attr]
    await store.redis.aclose()
    return found


async def test_replay_runs_the_matcher_beside_the_live_one(
    settings: ServiceSettings, send: Any, redis_url: str
) -> None:
    talks = traffic("ann") + traffic("bob")
    await send("traffic.raw", *(talk.raw(i) for talk in talks for i in range(3)))
    args = ["matcher", "--name", "again", "--timeout", "90"]
    suffix = settings.stream_input_suffix.removeprefix(".")
    args[2] = f"again-{suffix}"
    told = await cli(replay.command, *args)
    assert "matcher read 12 records again" in told
    matched = await all_of(settings, f"turns.matched.again-{suffix}")
    assert sorted(r.turn_id for r in matched) == sorted(t.id(i) for t in talks for i in (0, 1))
    assert await all_of(settings, settings.input_topic("turns.matched")) == [], "the live topic is untouched"
    async with Redis.from_url(redis_url) as redis:
        assert await redis.dbsize() == 0, "the live state is untouched"
    side = redis_url.rsplit("/", 1)[0] + "/15"
    async with Redis.from_url(side) as redis:
        assert await redis.dbsize() == 0, "the replay's own state is gone"
        await redis.set("somebody", "else")
        assert "is not empty" in await cli(replay.command, *args, code=1)
        await redis.delete("somebody")


async def test_replay_since_reads_only_what_is_younger(settings: ServiceSettings, send: Any) -> None:
    await send("traffic.raw", *(Talk("s", ["a"], T0).raw(0),))
    name = f"none-{settings.stream_input_suffix.removeprefix('.')}"
    told = await cli(replay.command, "matcher", "--name", name, "--since", "0s", "--timeout", "90")
    assert "matcher read 0 records again" in told


async def test_forget_removes_one_session_or_one_tenant_and_nothing_else(
    settings: ServiceSettings, send: Any, redis_url: str
) -> None:
    from libs.contracts import ExchangeClassified, decode

    talks = traffic("ann") + traffic("bob")
    await send("traffic.raw", *(talk.raw(i) for talk in talks for i in range(3)))
    lines = [decode(o.value, ExchangeClassified) for o in await match(settings, talks)]
    await send("exchanges.classified", *lines)
    session = next(x.session_id for x in lines if x.exchange_id == "ann-s0-0")
    assert session is not None

    async with Redis.from_url(redis_url) as redis:

        async def text_of(exchange: str, tenant: str) -> bytes | None:
            found: bytes | None = await redis.get(f"{key_prefix(apart(tenant, 'homework'))}h:{exchange}")
            return found

        assert await text_of("ann-s0-0", "ann"), "the test needs something to forget"
        await redis.set("clawback:judge:ballots:x", "v")
        await send("exchanges.classified", msgspec.structs.replace(lines[0], tenant="zoe", session_id=session))
        assert "several tenants" in await cli(forget.command, "--session", session, "--yes", code=1)
        told = await cli(forget.command, "--session", session, "--tenant", "ann", "--yes")
        assert "removed" in told
        assert await text_of("ann-s0-0", "ann") is None
        assert await text_of("ann-s0-2", "ann") is None
        assert await text_of("ann-s1-0", "ann")
        assert await text_of("bob-s0-0", "bob")
        assert await redis.get("clawback:judge:ballots:x") is None

        await cli(forget.command, "--tenant", "ann", "--yes")
        assert await text_of("ann-s1-0", "ann") is None
        assert await text_of("bob-s0-0", "bob")
        left = [k async for k in redis.scan_iter(match="*")]
        assert not [k for k in left if apart("ann", "homework").encode() in k]
    stones = await all_of(settings, settings.input_topic("tombstones"))
    assert [(s.kind, s.value, s.tenant) for s in stones if isinstance(s, Tombstone)] == [
        ("session", session, "ann"),
        ("tenant", "ann", ""),
    ]
    assert "no record names it" in await cli(forget.command, "--session", "nobody", "--yes", code=1)


async def test_a_replay_does_not_bring_back_who_was_forgotten(settings: ServiceSettings, send: Any) -> None:
    from libs.contracts import ExchangeClassified, decode

    talks = traffic("ann") + traffic("bob") + traffic("eve", 1)
    await send("traffic.raw", *(talk.raw(i) for talk in talks for i in range(3)))
    lines = [decode(o.value, ExchangeClassified) for o in await match(settings, talks)]
    await send("exchanges.classified", *lines)
    await send("turns.matched", *(talk.matched(1) for talk in talks))
    session = next(x.session_id for x in lines if x.exchange_id == "ann-s0-0")
    assert session is not None
    await cli(forget.command, "--session", session, "--yes")
    await cli(forget.command, "--tenant", "eve", "--yes")
    returned = Talk("eve-s1", ["Back again.", "No lists.", "Thanks."], time.time() + 5, tenant="eve")
    await send("traffic.raw", *(returned.raw(i) for i in range(3)))

    name = f"after-{settings.stream_input_suffix.removeprefix('.')}"
    told = await cli(replay.command, "matcher", "--name", name, "--timeout", "90")
    assert "matcher read 18 records again" in told
    assert "6  left out: forgotten" in told, "three of ann's session, three of eve"
    kept = {f"{talk}-{i}" for talk in ("ann-s1", "bob-s0", "bob-s1", "eve-s1") for i in range(3)}
    assert {r.exchange_id for r in await all_of(settings, f"exchanges.classified.{name}")} == kept
    assert {r.turn_id for r in await all_of(settings, f"turns.matched.{name}")} < kept

    told = await cli(replay.command, "judge", "--name", name, "--timeout", "90")
    assert "2  left out: forgotten" in told
    assert {r.turn_id for r in await all_of(settings, f"turns.judged.{name}")} == {"ann-s1-0", "bob-s0-0", "bob-s1-0"}
