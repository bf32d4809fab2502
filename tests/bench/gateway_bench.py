"""What the gateway costs: added latency, throughput against LiteLLM's proxy, a stream's first byte, memory.

Real processes: the gateway (redaction on, capture asked for and removed, records sent to a real broker), an upstream
that answers after 5 ms, and LiteLLM's proxy from the environment that tests/integration/gateway/install_agents.sh
makes (CLAWBACK_AGENTS_DIR; without it that figure is left out). Requests have 3.7 KB. Direct and proxied requests
alternate within one run, so that both see the same machine. Writes runs/bench-gateway.json.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import aiohttp
import psutil
import uvloop

from deploy.local import broker as local_broker
from deploy.local.process import Process, free_port, spawn, wait_until
from deploy.local.stack import ROOT
from deploy.topics.create import create
from libs.streams.config import ServiceSettings
from services.gateway.redaction import KingfisherScanner, Redactor
from services.gateway.redaction.verify import verifiers

RATE = 100  # requests a second, each way
CONNECTIONS = 64
_QUESTION = "Why does bread rise when it is baked, and what happens if the oven is too cold? Answer in plain prose. "
MESSAGES = [
    {"role": "system", "content": "You are a patient teacher."},
    *({"role": role, "content": _QUESTION * 5} for role in ("user", "assistant", "user", "assistant", "user", "user")),
]
BODY = json.dumps({"model": "bench", "messages": MESSAGES}).encode()
STREAM_BODY = json.dumps({"model": "bench", "messages": MESSAGES, "stream": True}).encode()
HEADERS = {"Content-Type": "application/json", "Authorization": "Bearer sk-bench", "x-session-id": "bench"}

Call = Callable[[str], Awaitable[float]]


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


async def timed(session: aiohttp.ClientSession, url: str) -> float:
    """Milliseconds for one whole answer."""
    began = time.perf_counter()
    async with session.post(url, data=BODY, headers=HEADERS) as response:
        await response.read()
        assert response.status == 200, response.status
    return (time.perf_counter() - began) * 1e3


async def first_byte(session: aiohttp.ClientSession, url: str) -> float:
    """Milliseconds to the first bytes of a stream, which is then read to its end."""
    began = time.perf_counter()
    async with session.post(url, data=STREAM_BODY, headers=HEADERS) as response:
        await response.content.readany()
        elapsed = (time.perf_counter() - began) * 1e3
        await response.read()
    return elapsed


async def paced(call: Call, urls: list[str], seconds: float, rate: float) -> dict[str, list[float]]:
    """Open loop: every URL gets `rate` requests a second, evenly interleaved, whether or not answers are there."""
    taken: dict[str, list[float]] = {url: [] for url in urls}

    async def one(url: str) -> None:
        taken[url].append(await call(url))

    began = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for number in range(int(seconds * rate * len(urls))):
            await asyncio.sleep(max(0.0, began + number / (rate * len(urls)) - time.perf_counter()))
            group.create_task(one(urls[number % len(urls)]))
    return taken


async def throughput(session: aiohttp.ClientSession, url: str, seconds: float) -> float:
    """Closed loop over CONNECTIONS; requests a second."""
    done, until = 0, time.perf_counter() + seconds

    async def lane() -> None:
        nonlocal done
        while time.perf_counter() < until:
            await timed(session, url)
            done += 1

    began = time.perf_counter()
    await asyncio.gather(*(lane() for _ in range(CONNECTIONS)))
    return done / (time.perf_counter() - began)


async def memory(session: aiohttp.ClientSession, url: str, pid: int, requests: int) -> dict[str, float]:
    """Resident MiB after a tenth of the requests, half of them and all of them."""
    process, done = psutil.Process(pid), 0
    marks: dict[str, float] = {}

    async def lane() -> None:
        nonlocal done
        while done < requests:
            done += 1
            await timed(session, url)

    for share, target in (("tenth", requests // 10), ("half", requests // 2), ("end", requests)):
        total, requests_now = requests, target
        requests = requests_now
        await asyncio.gather(*(lane() for _ in range(CONNECTIONS)))
        requests = total
        marks[f"memory_mib_{share}"] = process.memory_info().rss / 2**20
    return marks


def litellm(port: int, upstream: int, home: Path) -> Process | None:
    """LiteLLM's proxy on the same upstream, None where it is not installed."""
    binary = Path(os.environ.get("CLAWBACK_AGENTS_DIR", "/nowhere")) / "venv" / "litellm" / "bin" / "litellm"
    if not binary.exists():
        return None
    config = home / "litellm.yaml"
    config.write_text(
        "model_list:\n  - model_name: bench\n    litellm_params:\n      model: openai/bench\n"
        f"      api_base: http://127.0.0.1:{upstream}/v1\n      api_key: none\n"
    )
    argv = [str(binary), "--config", str(config), "--port", str(port), "--host", "127.0.0.1"]
    env = {"PATH": os.environ["PATH"], "HOME": str(home), "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    env["LITELLM_MASTER_KEY"] = "sk-bench"  # it refuses to start without one
    return spawn("litellm", argv, home / "litellm.log", env, home)


async def answers(session: aiohttp.ClientSession, url: str, seconds: float = 90.0) -> None:
    async with asyncio.timeout(seconds):
        while True:
            try:
                await timed(session, url)
                return
            except (aiohttp.ClientError, AssertionError, OSError):
                await asyncio.sleep(0.2)


async def measure(args: argparse.Namespace, home: Path, started: list[Process]) -> dict[str, float]:
    broker, bootstrap = await asyncio.to_thread(local_broker.start, home / "broker.log")
    started.append(broker)
    env = {"CLAWBACK_KAFKA_BOOTSTRAP_SERVERS": bootstrap, **local_broker.CLIENT_ENV}
    settings = ServiceSettings(**{k.removeprefix("CLAWBACK_").lower(): v for k, v in env.items()})
    await create(settings, local=True)
    ports = [free_port() for _ in range(3)]
    upstream, through, other = (f"http://127.0.0.1:{p}/v1/chat/completions" for p in ports)
    python = [sys.executable, "-m"]
    started.append(
        spawn("upstream", [*python, "tests.bench.gateway_upstream", str(ports[0])], home / "up.log", {}, ROOT)
    )
    env |= {
        "CLAWBACK_HOME": str(home),
        "CLAWBACK_HTTP_PORT": str(ports[1]),
        "CLAWBACK_GATEWAY_UPSTREAM_URL": f"http://127.0.0.1:{ports[0]}",
        "CLAWBACK_LOG_LEVEL": "WARNING",
        "PATH": os.environ["PATH"],
        "HOME": os.environ.get("HOME", str(home)),
    }
    gateway = spawn("gateway", [*python, "services.gateway"], home / "gateway.log", env, ROOT)
    started.append(gateway)
    figures: dict[str, float] = {"redaction_us_per_request": redaction()}
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        await answers(session, upstream)
        await answers(session, through)
        await paced(lambda u: timed(session, u), [upstream, through], 2.0, RATE)  # warm
        taken = await paced(lambda u: timed(session, u), [upstream, through], args.seconds, RATE)
        for name, share in (("p50", 0.5), ("p99", 0.99)):
            direct, proxied = percentile(taken[upstream], share), percentile(taken[through], share)
            figures |= {f"direct_ms_{name}": direct, f"proxied_ms_{name}": proxied}
            figures[f"gateway_added_ms_{name}"] = proxied - direct
        bytes_first = await paced(lambda u: first_byte(session, u), [upstream, through], args.seconds / 2, 25)
        medians = {url: statistics.median(values) for url, values in bytes_first.items()}
        figures["stream_first_byte_added_ms_p50"] = medians[through] - medians[upstream]
        figures["direct_per_second"] = await throughput(session, upstream, args.seconds / 2)
        before = await counted(session, ports[1], "clawback_gateway_published_total")
        served_before = await counted(session, ports[1], "clawback_gateway_exchanges_total")
        figures["gateway_per_second"] = await throughput(session, through, args.seconds / 2)
        sent = await counted(session, ports[1], "clawback_gateway_published_total") - before
        served = await counted(session, ports[1], "clawback_gateway_exchanges_total") - served_before
        figures["published_over_recorded_saturated"] = sent / served  # the rest waits in the spool
        if args.requests:
            figures |= await memory(session, through, gateway.pid, args.requests)
            figures["memory_requests"] = args.requests
            figures["memory_growth_mib"] = figures["memory_mib_end"] - figures["memory_mib_tenth"]
        if proxy := litellm(ports[2], ports[0], home):
            started.append(proxy)
            await answers(session, other)
            await throughput(session, other, 2.0)  # warm
            figures["litellm_per_second"] = await throughput(session, other, args.seconds / 2)
            ratio = figures["gateway_per_second"] / figures["litellm_per_second"]
            figures["gateway_throughput_over_litellm"] = ratio
        figures["records_dropped"] = await counted(session, ports[1], "clawback_gateway_dropped_total")
    return figures


def redaction() -> float:
    """Microseconds to search one request of the bench for secrets and personal data."""
    redactor = Redactor(KingfisherScanner([], verifiers(["US", "GB"])), b"bench")
    asked, rounds = json.loads(BODY), 300
    redactor.redact(asked)
    began = time.perf_counter()
    for _ in range(rounds):
        redactor.redact(asked)
    return (time.perf_counter() - began) / rounds * 1e6


async def counted(session: aiohttp.ClientSession, port: int, metric: str) -> float:
    """A counter of the gateway, summed over its labels."""
    async with session.get(f"http://127.0.0.1:{port}/metrics") as response:
        lines = (await response.text()).splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(metric))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0, help="of the latency run; others take half")
    parser.add_argument("--requests", type=int, default=100_000, help="of the memory run; 0 leaves it out")
    args = parser.parse_args()
    started: list[Process] = []
    with tempfile.TemporaryDirectory() as home:
        try:
            figures = uvloop.run(measure(args, Path(home), started))
        finally:
            for process in reversed(started):
                process.stop(5.0)
            wait_until(lambda: not any(p.alive() for p in started), 5.0)
    target = ROOT / "runs" / "bench-gateway.json"
    target.parent.mkdir(exist_ok=True)
    target.write_text(json.dumps(figures, indent=2, sort_keys=True) + "\n")
    for name, value in sorted(figures.items()):
        print(f"{name:34} {value:.4g}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
