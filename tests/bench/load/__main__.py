"""`make load`: what one machine sustains from the gateway to judged turns, and how the cost grows.

Writes runs/load.json. Gateway, matcher and judge (rules) run as `clawback up` starts them, with a broker and a Redis,
and an upstream that answers at once in the place of the engines. The clients run on the same machine. CPU seconds per
exchange say more than rates do: other load on the machine changes them little.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from deploy.local import stack as local
from deploy.local.process import accepts, free_port, spawn, wait_until
from deploy.local.stack import ROOT
from deploy.local.state import Stack
from libs.streams.config import ServiceSettings
from tests.bench.load.drive import Clients, Cpu, drained, latencies, percentiles, record_bytes, redis_bytes

SERVICES = ("judge", "matcher", "gateway")
ENV = {
    "CLAWBACK_GATEWAY_CAPTURE": "none",
    "CLAWBACK_JUDGE_REQUIRE_CAPTURE": "false",
    "CLAWBACK_JUDGE_CACHE_TTL_SECONDS": "0",  # every turn is judged anew
    "CLAWBACK_STREAM_MAX_IN_FLIGHT": "256",
}
# One setting differs from the base at a time.
BASE = {"pad_chars": 1000, "sessions_open": 200, "partitions": 2}
VARIANTS: dict[str, dict[str, int]] = {
    "base": {},
    "sessions_2000": {"sessions_open": 2000},
    "message_16k": {"pad_chars": 16_000},
    "message_64k": {"pad_chars": 64_000},
    "partitions_8": {"partitions": 8},
    "partitions_24": {"partitions": 24},
}


async def measure(settings: ServiceSettings, stack: Stack, setting: dict[str, int], args: Any) -> dict[str, Any]:
    """Saturate, let it drain, then hold a part of that rate for the latency."""
    url, cpu, empty = stack.gateway_url, Cpu(stack), await redis_bytes(stack.redis_url)
    clients = Clients(url, "full", args.concurrency, setting["pad_chars"], setting["sessions_open"])
    await clients.run(args.warm_up)
    warm = clients.exchanges
    spent = cpu.spent()
    took = await clients.run(args.seconds)
    sent = clients.exchanges - warm
    at_gateway = sent / took
    began = time.perf_counter()
    expected = (clients.exchanges - len(clients._waiting)) // 2
    judged = await drained(settings, expected)
    behind = time.perf_counter() - began
    costs = {name: (after - spent[name]) / sent * 1e6 for name, after in cpu.spent().items()}
    sustained = sent / (took + behind)
    per_session = (await redis_bytes(stack.redis_url) - empty) / max(1, clients.sessions)
    since_ms = int(time.time() * 1000)
    paced = Clients(url, "paced", args.concurrency, setting["pad_chars"], min(setting["sessions_open"], 20))
    await paced.run(args.seconds, rate=max(1.0, sustained * 0.5))
    await drained(settings, judged + (paced.exchanges - len(paced._waiting)) // 2)
    found = await latencies(settings, since_ms)
    return {
        "gateway_exchanges_per_second": round(at_gateway, 1),
        "sustained_exchanges_per_second": round(sustained, 1),
        "judged_turns": judged,
        "expected_turns": expected,
        "failures": clients.failures + paced.failures,
        "cpu_us_per_exchange": {name: round(cost, 1) for name, cost in costs.items()},
        "raw_to_judged_ms": dict(percentiles(found)),
        "raw_to_judged_turns": len(found),
        "client_ms": dict(percentiles(paced.waits)),
        "redis_bytes_per_session": round(per_session),
        "record_bytes": await record_bytes(settings),
        "latency_at_exchanges_per_second": round(max(1.0, sustained * 0.5), 1),
    }


def variant(name: str, args: Any) -> dict[str, Any]:
    """One stack of its own for each variant: the broker keeps everything in memory."""
    setting = BASE | VARIANTS[name]
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="clawback-load-") as folder:
        home = Path(folder)
        argv = [sys.executable, "-m", "tests.bench.load.upstream", str(port)]
        upstream = spawn("upstream", argv, home / "logs" / "upstream.log", os.environ, ROOT)
        try:
            if not wait_until(lambda: accepts(port), 30):
                raise SystemExit(f"the upstream did not start: {upstream.tail()}")
            env = ENV | {"CLAWBACK_GATEWAY_UPSTREAM_URL": f"http://127.0.0.1:{port}"}
            stack = local.up(home, services=SERVICES, env=env, partitions=setting["partitions"])
            settings = ServiceSettings(
                kafka_bootstrap_servers=stack.kafka_bootstrap_servers,
                kafka_idempotent_producer=stack.kafka_idempotent_producer,
                kafka_fetch_max_wait_ms=20,
            )
            return setting | asyncio.run(measure(settings, stack, setting, args))
        finally:
            local.down(home)
            upstream.stop(5.0)


def main() -> int:
    parser = argparse.ArgumentParser(prog="make load", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"only these: {', '.join(VARIANTS)}")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--warm-up", type=float, default=3.0)
    parser.add_argument("--concurrency", type=int, default=32)
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "load.json")
    args = parser.parse_args()
    found = {}
    for name in args.names or VARIANTS:
        found[name] = variant(name, args)
        print(name, json.dumps(found[name]), flush=True)
    base = found.get("base") or next(iter(found.values()))
    result = {
        "exchanges_per_second": base["sustained_exchanges_per_second"],
        "raw_to_judged_ms_p50": base["raw_to_judged_ms"].get("p50"),
        "raw_to_judged_ms_p99": base["raw_to_judged_ms"].get("p99"),
        "cores": os.cpu_count(),
        "load_average": [round(value, 1) for value in os.getloadavg()],
        "variants": found,
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(result, indent=2) + "\n")
    short = [name for name, each in found.items() if each["judged_turns"] < each["expected_turns"] or each["failures"]]
    if short:
        print(f"FAILED: turns missing or requests failed in {', '.join(short)}", file=sys.stderr)
    return 1 if short else 0


if __name__ == "__main__":
    sys.exit(main())
