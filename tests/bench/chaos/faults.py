"""What goes wrong, each fault one method. Processes are found in stack.json and signalled by pid."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from pathlib import Path

import msgspec
from redis.asyncio import Redis

from deploy.local import state
from deploy.local.broker import CLIENT_ENV
from deploy.local.process import Process, free_port, spawn
from deploy.local.stack import ROOT, readiness
from libs.contracts import TrafficRaw, decode
from libs.streams.config import ServiceSettings
from libs.streams.follow import read
from libs.streams.producer import KafkaProducer
from libs.streams.types import Output
from tests.bench.chaos.load import Accepted

POISON = (b"", b"not json", b'{"version": 1}', b"\xff\xfe\x00", b'{"version": 99, "exchange_id": "x"}', b"[1, 2, 3]")
CONSUMED = ("traffic.raw", "turns.matched", "turns.judged", "training.batches")
FOLLOWED = ("policy.releases", "exchanges.classified", "dead.letters")
DUPLICATED = CONSUMED


class Faults:
    """Does things to one stack and counts them."""

    def __init__(self, home: Path, settings: ServiceSettings, seed: int) -> None:
        self._home = home
        self._settings = settings
        self._dice = random.Random(seed)
        self.done: Counter[str] = Counter()
        self.kills: Counter[str] = Counter()
        self.skewed: list[Accepted] = []
        self._extra: list[Process] = []
        self._away: set[str] = set()  # killed, and not ready since

    def stack(self) -> state.Stack:
        found = state.read(self._home)
        assert found is not None
        return found

    def kill(self, name: str) -> bool:
        """kill -9 of a service, whatever it is doing."""
        entry = self.stack().services[name]
        process = entry.process(name)
        if not process.alive():
            return False
        process.signal(signal.SIGKILL)
        self.kills[name] += 1
        return True

    async def kill_at_random(self, count: int, names: list[str], mean_gap_seconds: float) -> None:
        """Up to `count` kills at exponentially distributed moments, until cancelled, each service about as often.

        Mostly a service that has come back since its last kill, so that there is traffic to be lost; one in seven times
        any of them, so that they die while they start as well.
        """
        while sum(self.kills.values()) < count:
            await asyncio.sleep(self._dice.expovariate(1 / mean_gap_seconds))
            back = [name for name in names if name not in self._away or await self._is_back(name)]
            choice = names if self._dice.random() < 1 / 7 else back
            if choice:
                fewest = min(self.kills[name] for name in choice)
                name = self._dice.choice([name for name in choice if self.kills[name] <= fewest + 1])
                if self.kill(name):
                    self._away.add(name)

    async def _is_back(self, name: str) -> bool:
        ready, _ = await asyncio.to_thread(readiness, self.stack().services[name].url, 2.0)
        if ready:
            self._away.discard(name)
        return ready

    async def restart_redis(self, *, keep: bool) -> None:
        """kill -9 of Redis; without `keep` its data is gone after the restart."""
        stack = self.stack()
        if not keep:
            async with contextlib.AsyncExitStack() as closing:
                client = Redis.from_url(stack.redis_url)
                closing.push_async_callback(client.aclose)
                await client.flushall()
        stack.infrastructure["redis"].process("redis").signal(signal.SIGKILL)
        self.done["redis_restart_with_data" if keep else "redis_restart_without_data"] += 1

    async def pause(self, name: str, seconds: float) -> None:
        """SIGSTOP, SIGCONT after a while: a broker that does not answer, a judge that is slow."""
        stack = self.stack()
        entry = stack.infrastructure.get(name) or stack.services[name]
        process = entry.process(name)
        process.signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(seconds)
        finally:
            process.signal(signal.SIGCONT)
        self.done[f"pause_{name}"] += 1

    async def poison(self) -> int:
        """Every kind of rubbish on every topic. Returns how many records must become dead letters."""
        producer = KafkaProducer(self._settings)
        outputs = [Output(topic, None, value) for topic in (*CONSUMED, *FOLLOWED) for value in POISON]
        await _send(producer, outputs)
        await producer.stop()
        self.done["poison_records"] += len(outputs)
        return len(CONSUMED) * len(POISON)

    async def deliver_again(self) -> None:
        """Everything that is on the topics so far, once more, byte for byte."""
        producer = KafkaProducer(self._settings)
        again = [
            Output(r.topic, None if r.key is None else r.key.decode(), r.value)
            async for r in read(self._settings, DUPLICATED)
            if r is not None and r.value not in POISON
        ]
        for begin in range(0, len(again), 200):
            await _send(producer, again[begin : begin + 200])
        await producer.stop()
        self.done["delivered_again"] += len(again)

    async def skew_clocks(self, count: int) -> None:
        """Answers recorded by a gateway whose clock is up to ten minutes behind: earlier than what they answer."""
        originals: list[TrafficRaw] = []
        async for r in read(self._settings, ["traffic.raw"]):
            if r is not None and r.value not in POISON:
                originals.append(decode(r.value, TrafficRaw))
            if len(originals) >= 50:
                break
        producer = KafkaProducer(self._settings)
        for number in range(min(count, len(originals))):
            skew = self._dice.uniform(60, 600)
            first, second = _skewed_pair(originals[number], f"skew-{number}", skew)
            outputs = [Output("traffic.raw", f"skew-{number}", msgspec.json.encode(r)) for r in (first, second)]
            await _send(producer, outputs)
            reply = first.response["choices"][0]["message"]["content"]
            self.skewed += [
                Accepted(first.exchange_id, f"skew-{number}", reply, None, None),
                Accepted(second.exchange_id, f"skew-{number}", "ok", first.exchange_id, reply),
            ]
        await producer.stop()
        self.done["skewed_sessions"] += count

    async def join_and_leave(self, name: str, seconds: float) -> None:
        """A second consumer of the service's group comes and goes."""
        stack = self.stack()
        env = dict(os.environ) | CLIENT_ENV | {
            "CLAWBACK_HOME": stack.home,
            "CLAWBACK_KAFKA_BOOTSTRAP_SERVERS": stack.kafka_bootstrap_servers,
            "CLAWBACK_REDIS_URL": stack.redis_url,
            "CLAWBACK_HTTP_PORT": str(free_port()),
        } | json.loads((self._home / "plan.json").read_bytes())["env"]  # fmt: skip
        log = self._home / "logs" / f"{name}-extra.log"
        process = spawn(name, [sys.executable, "-m", f"services.{name}"], log, env, ROOT)
        self._extra.append(process)
        try:
            await asyncio.sleep(seconds)
        finally:
            await asyncio.to_thread(process.stop, 30.0)
        self.done[f"join_and_leave_{name}"] += 1

    async def fill_disk(self, mount: Path, seconds: float) -> None:
        """No byte left for the spool while the broker is paused."""
        filler = mount / "filler"
        broker = asyncio.create_task(self.pause("broker", seconds))
        try:
            await asyncio.to_thread(_fill, filler)
            await broker
        finally:
            filler.unlink(missing_ok=True)
        self.done["disk_full"] += 1


def _fill(path: Path) -> None:
    out = os.open(path, os.O_WRONLY | os.O_CREAT)
    try:
        with contextlib.suppress(OSError):  # no space left
            while True:
                os.write(out, bytes(4096))
    finally:
        os.close(out)


def _skewed_pair(original: TrafficRaw, name: str, skew_seconds: float) -> tuple[TrafficRaw, TrafficRaw]:
    question = [{"role": "user", "content": f"{name}: why is the sky blue?"}]
    reply = f"{name}: because air scatters blue light more than red light."
    response = {"id": name, "object": "chat.completion", "choices": [
        {"index": 0, "message": {"role": "assistant", "content": reply}, "finish_reason": "stop"}]}  # fmt: skip
    now = time.time()
    first = msgspec.structs.replace(
        original, exchange_id=f"{name}-a", scenario="skewed", headers={},
        request={"model": "policy", "messages": question},
        response=response, outcome="completed", release_id="base", received_at=now, completed_at=now + 1, capture=None,
    )  # fmt: skip
    answer = [*question, {"role": "assistant", "content": reply}, {"role": "user", "content": "No, that is too short."}]
    second = msgspec.structs.replace(
        first, exchange_id=f"{name}-b", request={"model": "policy", "messages": answer},
        received_at=now + 5 - skew_seconds, completed_at=now + 6 - skew_seconds,
    )  # fmt: skip
    return first, second


async def _send(producer: KafkaProducer, outputs: list[Output]) -> None:
    while outputs:
        outputs = await producer.send_all(outputs)
