"""The judge as a process of its own, on the real broker and Redis."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from deploy.local.process import Process, free_port, spawn
from deploy.local.stack import ROOT, readiness
from libs.contracts import Message, TurnMatched
from tests.eventually import eventually
from tests.unit.feedback.make import matched

TOPICS = ("turns.matched", "turns.judged", "dead.letters")


class JudgeProcess:
    """`python -m services.judge` with its health port."""

    def __init__(self, process: Process, url: str) -> None:
        self.process = process
        self.url = url

    async def ready(self) -> None:
        await eventually(self.is_ready, within_seconds=90, why=f"ready; its log ends:\n{self.process.tail()}")

    async def is_ready(self) -> bool:
        return bool(await asyncio.to_thread(lambda: readiness(self.url)[0]))

    def metric(self, name: str) -> float:
        """The sum of a metric over its labels."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        found = [line for line in lines if line.startswith((f"{name} ", f"{name}{{"))]
        return sum(float(line.rsplit(" ", 1)[1]) for line in found)


@contextmanager
def judges(folder: Path, env: Mapping[str, str]) -> Iterator[list[JudgeProcess]]:
    """A list to which `start` adds; what still runs at the end is killed."""
    running: list[JudgeProcess] = []
    try:
        yield running
    finally:
        for judge in running:
            judge.process.signal(signal.SIGKILL)


def start(folder: Path, env: Mapping[str, str], running: list[JudgeProcess]) -> JudgeProcess:
    port = free_port()
    name = f"judge{len(running)}"
    whole = dict(os.environ) | dict(env) | {"CLAWBACK_HTTP_PORT": str(port)}
    process = spawn(name, [sys.executable, "-m", "services.judge"], folder / f"{name}.log", whole, ROOT)
    running.append(JudgeProcess(process, f"http://127.0.0.1:{port}"))
    return running[-1]


def environment(kafka_env: Mapping[str, str], redis_url: str, unique: str) -> dict[str, str]:
    return dict(kafka_env) | {
        "CLAWBACK_REDIS_URL": redis_url,
        "CLAWBACK_STREAM_INPUT_SUFFIX": f".{unique}",
        "CLAWBACK_STREAM_OUTPUT_SUFFIX": f".{unique}",
        "CLAWBACK_STREAM_GROUP": unique,
        "CLAWBACK_STREAM_COMMIT_INTERVAL_SECONDS": "0.2",
        "CLAWBACK_STREAM_BACKOFF_MAX_SECONDS": "0.5",
        "CLAWBACK_STREAM_DRAIN_SECONDS": "5",
    }


def prm_environment(url: str) -> dict[str, str]:
    return {
        "CLAWBACK_JUDGE_KIND": "prm",
        "CLAWBACK_JUDGE_PRM_URL": url,
        "CLAWBACK_JUDGE_PRM_MODEL": "prm",
        "CLAWBACK_JUDGE_PRM_CALL_TIMEOUT_SECONDS": "5",
    }


def turn(number: int, words: str = "No, please stop using lists.", scenario: str = "s") -> TurnMatched:
    """A matched turn unlike all others, so that no vote is found in the cache by accident."""
    return matched(
        Message("user", words),
        turn_id=f"turn-{number}",
        answered_by=f"answer-{number}",
        session_id=f"session-{number}",
        scenario=scenario,
        reply=f"1. Mix {number} cups\n2. Knead\n3. Bake",
    )
