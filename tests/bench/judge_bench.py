"""Turns a second through the judge service: broker, Redis, judge and an instant PRM, each a process, over real HTTP.

m = 3 votes (two settle a turn), results stored in Redis, each turn of about 4 KB with two earlier ones. All turns lie
on the topic before the judge starts. The rate is that of the records' own `judged_at`, without the first 500.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
import tempfile
import time
import uuid
from pathlib import Path

import psutil

from deploy.local import broker as local_broker
from deploy.local import redis as local_redis
from deploy.local.process import free_port, spawn
from deploy.local.stack import ROOT
from libs.contracts import Message, TurnJudged, TurnMatched, decode, encode
from libs.streams.config import ServiceSettings
from libs.streams.types import Output
from tests.integration.judge.service import JudgeProcess, environment, judges, prm_environment, start
from tests.integration.streams.worlds import KafkaWorld
from tests.unit.feedback.make import earlier, matched

_WARM = 500


def turns(count: int) -> list[TurnMatched]:
    text = "Mix the flour, the water and the salt, let it rest, knead it and bake it until it is brown. " * 12
    history = [earlier(n, reply=f"{n}. {text[:600]}", capture=None) for n in (1, 2)]
    return [
        matched(
            Message("user", f"No, please stop using lists ({n})."),
            turn_id=f"turn-{n}", answered_by=f"answer-{n}", session_id=f"session-{n % 200}", scenario=f"s{n % 8}",
            reply=f"{n}. {text}", response={"choices": [{"message": {"role": "assistant", "content": text}}]},
            earlier=history,
        )
        for n in range(count)
    ]  # fmt: skip


async def measure(kind: str, count: int, home: Path) -> tuple[float, float]:
    """Turns a second with the judge of this kind, and CPU milliseconds of its process a turn (start included)."""
    broker, bootstrap = local_broker.start(home / "broker.log")
    redis, redis_url = local_redis.start(home / "redis.log")
    port = free_port()
    prm = spawn("prm", [sys.executable, "-m", "tests.integration.judge.instant", str(port)], home / "prm.log", {}, ROOT)
    try:
        env = {"CLAWBACK_KAFKA_BOOTSTRAP_SERVERS": bootstrap, **local_broker.CLIENT_ENV}
        unique = f"t{uuid.uuid4().hex[:8]}"
        settings = ServiceSettings(**{k.removeprefix("CLAWBACK_").lower(): v for k, v in env.items()})
        world = await KafkaWorld(settings, unique).open()
        producer = world.producer()
        whole = [Output(world.source, t.session_id, encode(t)) for t in turns(count)]
        for begin in range(0, count, 250):
            left = whole[begin : begin + 250]
            while left:
                left = list(await producer.send_all(left))
        await producer.stop()
        own = environment(env, redis_url, unique)
        own |= prm_environment(f"http://127.0.0.1:{port}/v1") if kind == "prm" else {}
        with judges(home, own) as running:
            return await _rate(start(home, own, running), world, count)
    finally:
        prm.stop(5.0)
        broker.stop(5.0)
        redis.stop(5.0)


async def _rate(judge: JudgeProcess, world: KafkaWorld, count: int) -> tuple[float, float]:
    await judge.ready()
    deadline = time.monotonic() + 240
    while await _judged(judge) < count:
        if time.monotonic() > deadline:
            raise TimeoutError(f"fewer than {count} turns judged in time")
        await asyncio.sleep(2.0)  # asking costs the judge time, too
    times = psutil.Process(judge.process.pid).cpu_times()
    at = sorted(decode(record.value, TurnJudged).judged_at for record in await world.records(world.target))[_WARM:]
    return len(at) / (at[-1] - at[0]), (times.user + times.system) / count * 1000


async def _judged(judge: JudgeProcess) -> float:
    return await asyncio.to_thread(judge.metric, "clawback_judged_turns_total")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=6000)
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what it started is stopped, too
    figures = {}
    for kind, name in (("prm", "judge"), ("rules", "judge_rules")):
        with tempfile.TemporaryDirectory() as folder:
            rate, cpu = asyncio.run(measure(kind, args.turns, Path(folder)))
        figures |= {f"{name}_turns_per_second": round(rate, 1), f"{name}_cpu_ms_per_turn": round(cpu, 3)}
    path = ROOT / "runs" / "bench-judge.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(figures, indent=2) + "\n")
    print(json.dumps(figures, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
