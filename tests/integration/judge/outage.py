"""A long outage of the PRM under steady load: `python -m tests.integration.judge.outage --minutes 10 --rate 20`.

Broker, Redis, the judge and the PRM are real processes and real HTTP. For a third of the time nothing listens on the
PRM's port, for a third it accepts and never answers, for a third it answers 503. Then it is well again. Writes
runs/judge_outage.json and fails when a turn is lost, neutral, dead-lettered, or the outage was not to be seen.
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
from collections import Counter
from pathlib import Path
from typing import Any

from aiohttp import web

from deploy.local import broker as local_broker
from deploy.local import redis as local_redis
from deploy.local.process import free_port
from deploy.local.stack import ROOT
from libs.contracts import TurnJudged, decode, encode
from libs.streams.config import ServiceSettings
from libs.streams.types import Output
from tests.integration.judge.prm_server import serve
from tests.integration.judge.service import JudgeProcess, environment, judges, prm_environment, start, turn
from tests.integration.streams.worlds import KafkaWorld


async def main(minutes: float, rate: float) -> int:
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        broker, bootstrap = local_broker.start(home / "broker.log")
        redis, redis_url = local_redis.start(home / "redis.log")
        try:
            env = {"CLAWBACK_KAFKA_BOOTSTRAP_SERVERS": bootstrap, **local_broker.CLIENT_ENV}
            report = await _outage(home, env, redis_url, minutes, rate)
        finally:
            broker.stop(5.0)
            redis.stop(5.0)
    path = ROOT / "runs" / "judge_outage.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(report, indent=2) + "\n")
    print(json.dumps(report, indent=2))
    good = report["lost"] == report["neutral"] == report["dead_lettered"] == report["emitted_while_away"] == 0
    return 0 if good and report["seen_not_ready"] and report["sent"] else 1


async def _outage(home: Path, env: dict[str, str], redis_url: str, minutes: float, rate: float) -> dict[str, Any]:
    unique = f"t{uuid.uuid4().hex[:8]}"
    settings = ServiceSettings(**{k.removeprefix("CLAWBACK_").lower(): v for k, v in env.items()})
    world = await KafkaWorld(settings, unique).open()
    port = free_port()
    own = environment(env, redis_url, unique) | prm_environment(f"http://127.0.0.1:{port}/v1")
    with judges(home, own) as running:
        judge = start(home, own, running)
        await judge.ready()
        began = time.monotonic()
        feeding = asyncio.create_task(_feed(world, minutes * 60, rate))
        not_ready = await _away(judge, port, minutes * 60)
        sent = await feeding
        early = len(await world.records(world.target))
        away = time.monotonic() - began
        async with serve(port) as server:
            server.keep_requests = False
            back = time.monotonic()
            found = await _drain(world, sent)
        return _report(found, sent, early, len(await world.records(world.dead))) | {
            "minutes_away": round(away / 60, 2),
            "seconds_to_catch_up": round(time.monotonic() - back, 1),
            "seen_not_ready": not_ready,
            "turns_per_second_sent": rate,
        }


async def _away(judge: JudgeProcess, port: int, seconds: float) -> bool:
    not_ready = False
    for phase in ("refused", "hanging", "503"):
        until = time.monotonic() + seconds / 3
        if phase == "refused":
            while time.monotonic() < until:
                await asyncio.sleep(1.0)
                not_ready = not_ready or not await judge.is_ready()
            continue
        async with serve(port) as server:
            server.keep_requests = False
            server.fault = (lambda n: "hang") if phase == "hanging" else (lambda n: web.json_response({}, status=503))
            await asyncio.sleep(max(0.0, until - time.monotonic()))
            not_ready = not_ready and not await judge.is_ready()
    return not_ready


async def _feed(world: KafkaWorld, seconds: float, rate: float) -> int:
    producer = world.producer()
    began = time.monotonic()
    sent = 0
    while (now := time.monotonic() - began) < seconds:
        due = int(now * rate) - sent
        batch = [turn(sent + n, scenario=f"s{(sent + n) % 5}") for n in range(due)]
        left = await producer.send_all([Output(world.source, t.session_id, encode(t)) for t in batch])
        sent += due - len(left)
        await asyncio.sleep(0.5)
    await producer.stop()
    return sent


async def _drain(world: KafkaWorld, sent: int) -> list[TurnJudged]:
    until = time.monotonic() + 300
    while True:
        found = [decode(r.value, TurnJudged) for r in await world.records(world.target)]
        if len({j.turn_id for j in found}) >= sent or time.monotonic() > until:
            return found
        await asyncio.sleep(1.0)


def _report(found: list[TurnJudged], sent: int, early: int, dead: int) -> dict[str, Any]:
    ids = Counter(j.feedback_id for j in found)
    return {
        "sent": sent,
        "judged": len({j.turn_id for j in found}),
        "lost": sent - len({j.turn_id for j in found}) - dead,
        "neutral": sum(j.verdict == 0 for j in found),
        "dead_lettered": dead,
        "emitted_while_away": early,
        "delivered_twice": sum(n - 1 for n in ids.values()),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--rate", type=float, default=20.0, help="turns a second")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what it started is stopped, too
    sys.exit(asyncio.run(main(arguments.minutes, arguments.rate)))
