"""A policy process on the test's broker, and somebody who publishes releases to it."""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec

from deploy.local.process import Process, free_port, spawn, wait_until
from libs.contracts import Adapter, Capture, PolicyRelease, encode
from libs.streams.config import ServiceSettings
from libs.streams.producer import KafkaProducer
from libs.streams.types import Output
from tests.unit.learning_engine.support import reference

ROOT = Path(__file__).parents[3]
CHAT = "/v1/chat/completions"
CLOSE = 2e-4  # nats, served against transformers on the same tokens


class Policy:
    """One process; `start` again after a kill."""

    def __init__(self, model_dir: Path, log: Path, env: dict[str, str]) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._log = log
        self._env = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "CLAWBACK_HTTP_PORT": str(self.port),
            "CLAWBACK_POLICY_MODEL": str(model_dir),
            "CLAWBACK_POLICY_RETRY_SECONDS": "0.5",
            **env,
        }
        self.process: Process

    def start(self, *, wait: bool = True) -> None:
        command = [sys.executable, "-m", "services.policy"]
        self.process = spawn("policy", command, self._log, self._env, cwd=ROOT)
        if wait:
            assert wait_until(self.ready, 60.0), self.process.tail()

    def ready(self) -> bool:
        assert self.process.alive(), self.process.tail()
        try:
            return httpx.get(f"{self.url}/readyz").status_code == 200
        except httpx.TransportError:
            return False

    def serving(self, scenario: str) -> str | None:
        models = httpx.get(f"{self.url}/v1/models").json()
        return models["data"][0]["releases"].get(scenario)

    def wait_serving(self, scenario: str, release_id: str) -> None:
        assert wait_until(lambda: self.serving(scenario) == release_id, 30.0), self.process.tail()

    def metric(self, name: str, **labels: str) -> float:
        """The sum over samples of that name with these labels."""
        lines = httpx.get(f"{self.url}/metrics").text.splitlines()
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        found = [line for line in lines if line.partition("{")[0].partition(" ")[0] == name]
        return sum(float(line.rpartition(" ")[2]) for line in found if all(w in line for w in wanted))


@contextmanager
def policy(model_dir: Path, log: Path, env: dict[str, str]) -> Iterator[Policy]:
    server = Policy(model_dir, log, env)
    server.start()
    try:
        yield server
    finally:
        server.process.stop(20.0)


class Publisher:
    """Writes release events as the trainer does."""

    def __init__(self, settings: ServiceSettings, topic: str) -> None:
        self._producer, self._topic = KafkaProducer(settings), topic
        self._numbers = itertools.count(1)
        self._serving: dict[str, str] = {}

    async def __aenter__(self) -> Publisher:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._producer.stop()

    async def release(self, scenario: str, weights: Adapter, **changes: Any) -> str:
        """Publish a release (event "released" unless changed); returns its id."""
        number = next(self._numbers)
        release_id = f"{scenario}@{number:05d}-test"
        parent = self._serving.get(scenario, "base")
        values: dict[str, Any] = {
            "event": "released", "release_id": release_id, "parent_id": parent, "serving": release_id,
            "scenario": scenario, "step": number, "number": number, "batch_id": f"b{number}", "trained": [],
            "dropped": {}, "weights": weights, "metrics": {}, "created_at": time.time(),
        } | changes  # fmt: skip
        await self.send(PolicyRelease(**values))
        return release_id

    async def send(self, event: PolicyRelease) -> None:
        self._serving[event.scenario] = event.serving
        await self._producer.send(Output(self._topic, event.scenario, encode(event)))


def off_by(model_dir: Path, body: dict[str, Any], adapter: Path | None) -> float:
    """The largest distance, in nats, between a captured answer's log-probs and transformers' own for its tokens."""
    capture = msgspec.convert(body["clawback"]["capture"], Capture)
    capture.check()
    prompt, reply = capture.prompt_token_ids.values(), capture.response_token_ids.values()
    rows = reference(model_dir, [int(i) for i in (*prompt, *reply)], adapter)[len(prompt) - 1 : -1]
    wanted = [float(row[int(token)]) for row, token in zip(rows, reply, strict=True)]
    top = rows.topk(capture.topk_ids.shape[1]).values.flatten().tolist()
    pairs = [
        *zip(capture.logprobs.values(), wanted, strict=True),
        *zip(capture.topk_logprobs.values(), top, strict=True),
    ]
    return max(abs(a - b) for a, b in pairs)


def question(text: str, **changes: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], "max_tokens": 12, **changes}
