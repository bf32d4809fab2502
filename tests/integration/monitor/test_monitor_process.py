"""The monitor as a process on a real broker: its figures equal a count over the topics, and survive kill -9."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiokafka import AIOKafkaProducer
from click.testing import CliRunner

from deploy.local.process import free_port
from libs.contracts import DeadLetter, Record, encode
from libs.streams.config import ServiceSettings
from libs.streams.tap import tap
from libs.telemetry.ledger import Ledger
from tests.eventually import eventually
from tests.monitor_records import TOPIC_OF, Talk, trained_talk

pytestmark = pytest.mark.integration
ROOT = Path(__file__).parents[3]


class Monitor:
    """The process and its HTTP address."""

    def __init__(self, env: dict[str, str], log: Path) -> None:
        self.port = free_port()
        self._env = os.environ | env | {"CLAWBACK_HTTP_PORT": str(self.port)}
        self._log = log.open("ab")
        self.process = self._spawn()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def _spawn(self) -> subprocess.Popen[bytes]:
        argv = [sys.executable, "-m", "services.monitor"]
        return subprocess.Popen(argv, cwd=ROOT, env=self._env, stderr=self._log)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def restart(self) -> None:
        self.process = self._spawn()

    async def get(self, path: str) -> Any:
        try:
            async with aiohttp.ClientSession() as http, http.get(self.url + path) as answer:
                text = await answer.text()
                return json.loads(text) if answer.status == 200 and path.startswith("/api") else (answer.status, text)
        except aiohttp.ClientError:
            return (0, "")

    async def ready(self) -> None:
        async def holds() -> bool:
            assert self.process.poll() is None, "the monitor ended"
            return (await self.get("/readyz"))[0] == 200

        await eventually(holds, why="monitor ready")

    async def holds_exchanges(self, n: int) -> dict[str, Any]:
        async def holds() -> Any:
            document = await self.get("/api/status")
            return document if isinstance(document, dict) and document["exchanges_held"] == n else None

        document: dict[str, Any] = await eventually(holds, why=f"{n} exchanges seen")
        return document


@pytest.fixture
def suffix_env(kafka_env: dict[str, str], topic_suffix: str) -> dict[str, str]:
    return kafka_env | {
        "CLAWBACK_STREAM_INPUT_SUFFIX": topic_suffix,
        "CLAWBACK_STREAM_OUTPUT_SUFFIX": topic_suffix,
        "CLAWBACK_MONITOR_LAG_INTERVAL_SECONDS": "0.2",
    }


@pytest.fixture
def settings(suffix_env: dict[str, str]) -> ServiceSettings:
    return ServiceSettings(**{k.removeprefix("CLAWBACK_").lower(): v for k, v in suffix_env.items()})


@pytest.fixture
def monitor(suffix_env: dict[str, str], tmp_path: Path) -> Iterator[Monitor]:
    found = Monitor(suffix_env, tmp_path / "monitor.log")
    yield found
    found.kill()


@pytest.fixture
async def send(broker: str, topic_suffix: str) -> AsyncIterator[Any]:
    producer = AIOKafkaProducer(bootstrap_servers=broker)
    await producer.start()

    async def send(records: list[Record | tuple[str, bytes | None, bytes | None]]) -> None:
        for record in records:
            topic, key, value = (
                record if isinstance(record, tuple) else (TOPIC_OF[type(record)], key_of(record), encode(record))
            )
            await producer.send(topic + topic_suffix, key=key, value=value)
        await producer.flush()

    yield send
    await producer.stop()


def key_of(record: Any) -> bytes:
    return str(getattr(record, "session_id", None) or record.scenario).encode()


def traffic(start: float) -> list[Record]:
    records: list[Record] = []
    for i in range(12):
        records += trained_talk(f"s{i}", start - 300 + i)
    records += Talk("u", ["a", "b", "c"], start - 200, "essays", unmatched={1: "ambiguous"}).records()
    records += Talk("old", ["a"], start - 90_000, "essays").records()
    return records


async def counted(settings: ServiceSettings, now: float) -> Any:
    """Counts straight from the topics."""
    ledger = Ledger()
    async for tapped in tap(settings, [settings.input_topic(t) for t in TOPIC_OF.values()]):
        assert tapped.record is not None, tapped.error
        ledger.observe(tapped.record)
    return ledger.counts(ttl_seconds=86_400.0, now=now)


async def test_figures_equal_a_count_over_the_topics(monitor: Monitor, send: Any, settings: ServiceSettings) -> None:
    start = time.time()
    await monitor.ready()
    await send(traffic(start))
    document = await monitor.holds_exchanges(12 * 3 + 3 + 1)

    async def trained() -> Any:
        found = await monitor.get("/api/status")
        return found if found["total"]["all"]["trained"] == 24 else None

    document = await eventually(trained, why="the releases are seen")
    counts = await counted(settings, document["now"])
    assert document["total"]["all"]["match_rate"] == counts.match_rate == 25 / 27
    assert document["total"]["all"]["signal_rate"] == counts.signal_rate == 24 / 40
    assert document["scenarios"]["essays"]["windows"]["1h"]["unmatched"] == {"ambiguous": 1}
    _, metrics = await monitor.get("/metrics")
    assert 'clawback_match_rate_ratio{scenario="homework",window="1h"} 1.0' in metrics
    assert 'clawback_stage_seconds_count{scenario="homework",stage="raw_to_trained"} 24.0' in metrics


async def test_kill_and_restart_bring_the_same_figures_back(monitor: Monitor, send: Any) -> None:
    await monitor.ready()
    await send(traffic(time.time()))
    before = await monitor.holds_exchanges(40)
    monitor.kill()
    await send(list(Talk("while-down", ["a", "b"], time.time() - 50, "night").records()))
    monitor.restart()
    await monitor.ready()
    after = await monitor.holds_exchanges(42)
    assert after["total"]["all"]["trained"] >= before["total"]["all"]["trained"]
    assert after["total"]["all"]["trained"] == 24
    assert after["scenarios"]["night"]["windows"]["5m"]["match_rate"] == 1.0
    _, metrics = await monitor.get("/metrics")
    assert 'stage="raw_to_trained"} 0.0' in metrics or 'stage="raw_to_trained"' not in metrics, "observed again"


async def test_a_bad_record_is_set_aside_once_and_the_rest_goes_on(
    monitor: Monitor, send: Any, settings: ServiceSettings
) -> None:
    await monitor.ready()
    await send([("turns.judged", b"k", b'{"no": "turn"}'), ("dead.letters", b"k", b"not a letter")])
    await send(trained_talk("s", time.time()))
    await monitor.holds_exchanges(3)

    async def letters() -> list[DeadLetter]:
        found = [t.record async for t in tap(settings, [settings.input_topic("dead.letters")])]
        return [r for r in found if isinstance(r, DeadLetter)]

    assert [x.source_topic for x in await eventually(letters)] == [settings.input_topic("turns.judged")]
    monitor.kill()
    monitor.restart()
    await monitor.ready()
    await send(trained_talk("t", time.time()))
    await monitor.holds_exchanges(6)
    await eventually(lambda: monitor.get("/healthz"))
    assert len(await letters()) == 1, "a restart must not write the letter again"


async def test_sigterm_ends_it_cleanly(monitor: Monitor) -> None:
    await monitor.ready()
    monitor.process.send_signal(signal.SIGTERM)
    assert monitor.process.wait(timeout=30) == 0


async def test_lag_of_a_group_that_reads_nothing_is_seen(
    monitor: Monitor, send: Any, settings: ServiceSettings
) -> None:
    await monitor.ready()
    await send(list(Talk("s", ["a", "b"], time.time()).records()))

    async def lag() -> Any:
        document = await monitor.get("/api/status")
        return document["lag"] if isinstance(document, dict) and document["lag"] else None

    async def two_behind() -> bool:
        return (await lag() or {}).get("clawback-matcher") == {"traffic.raw": 2}

    await eventually(two_behind, why="the matcher's group has committed nothing: two records behind")


async def test_status_tap_and_trace_read_the_running_system(
    monitor: Monitor, send: Any, suffix_env: dict[str, str], monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    from libs.cli.commands import status, tap, trace

    await monitor.ready()
    await send(traffic(time.time()))
    await monitor.holds_exchanges(40)
    for name, value in suffix_env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("CLAWBACK_MONITOR_URL", monitor.url)

    async def cli(command: Any, *args: str) -> str:
        import asyncio

        result = await asyncio.to_thread(CliRunner().invoke, command, list(args), catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.stdout

    shown = await cli(status.command)
    assert "match rate 96.2 %" in shown, "25 of the 26 answerable turns of the last hour"
    document = json.loads(await cli(status.command, "--json", "--scenario", "essays"))
    assert list(document["scenarios"]) == ["essays"]

    lines = (
        await cli(tap.command, f"turns.judged{suffix_env['CLAWBACK_STREAM_INPUT_SUFFIX']}", "--jsonl")
    ).splitlines()
    assert len(lines) == 24
    assert {json.loads(line)["scenario"] for line in lines} == {"homework"}
    topic = f"exchanges.classified{suffix_env['CLAWBACK_STREAM_INPUT_SUFFIX']}"
    assert len((await cli(tap.command, topic, "--session", "s3")).splitlines()) == 3
    assert len((await cli(tap.command, topic, "--scenario", "essays")).splitlines()) == 4
    assert len((await cli(tap.command, topic, "--turn", "s3-1")).splitlines()) == 2

    traced = await cli(trace.command, "s3-0")
    order = [
        "traffic.raw",
        "exchanges.classified",
        "turns.matched",
        "turns.judged",
        "training.batches",
        "policy.releases",
    ]
    assert [t for t in order if t in traced] == order
    assert "verdict -1 by rules" in traced
    assert "step 1 released: release homework@00001-b-s3" in traced
    missing = await _to_thread(trace.command, "nowhere")
    assert missing.exit_code != 0
    assert "no topic names nowhere" in missing.output


async def test_doctor_examines_the_running_system(
    monitor: Monitor, send: Any, suffix_env: dict[str, str], monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    from libs.cli.commands import doctor

    await monitor.ready()
    now = time.time()
    await send(
        [r for i in range(6) for r in Talk(f"t{i}", ["title?"], now - 60, "aside", classes={0: "side"}).records()]
    )
    await monitor.holds_exchanges(6)
    monkeypatch.setenv("CLAWBACK_MONITOR_URL", monitor.url)
    monkeypatch.setenv("CLAWBACK_JUDGE_URL", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setenv("CLAWBACK_MATCHER_URL", monitor.url)  # a service that answers /readyz and /metrics
    told = await _to_thread(doctor.command, "--json")
    found = {f["cause"]: f for f in json.loads(told.stdout)}
    assert told.exit_code == 1, "something stops all signal"
    assert set(found) == {"side_calls_only", "service_down"}
    assert found["side_calls_only"]["figure"] == "6 side calls, 0 main turns"
    assert "judge" in found["service_down"]["says"]
    page = (await _to_thread(doctor.command)).stdout
    assert page.startswith("match rate -  signal rate -")
    assert "STOPS ALL SIGNAL  aside:" in page


async def _to_thread(command: Any, *args: str) -> Any:
    import asyncio

    return await asyncio.to_thread(CliRunner().invoke, command, list(args))
