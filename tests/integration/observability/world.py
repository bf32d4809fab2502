"""A whole stack with a tiny model, watched by a real Prometheus whose rules have their times shortened."""

from __future__ import annotations

import json
import re
import shutil
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from deploy.local import stack as local
from deploy.local.process import Process, free_port, spawn
from deploy.local.state import Stack

ROOT = Path(__file__).parents[3]
RULES = ROOT / "deploy" / "prometheus" / "rules.yaml"
PROMETHEUS = shutil.which("prometheus")
SCRAPE_SECONDS = 1
# A random model says nothing sensible: the gate and the guard would rightly hold everything back.
ENV = {
    "CLAWBACK_TRAINER_GATE": "false",
    "CLAWBACK_TRAINER_GUARD": "false",
    "CLAWBACK_BATCHER_BATCH_SIZE": "2",
    "CLAWBACK_BATCHER_MAX_AGE_SECONDS": "3",
    "CLAWBACK_MONITOR_LAG_INTERVAL_SECONDS": "1",
    "CLAWBACK_GATEWAY_RETRIES": "1",
    "OMP_NUM_THREADS": "1",
}


def shortened(text: str) -> str:
    """The rules with every duration cut so that a test can wait for them; thresholds and windows of turns stay."""
    text = re.sub(r"\bfor: \d+m", "for: 2s", text)
    text = re.sub(r"\[\d+[mh]\]", "[15s]", text)
    return re.sub(r"offset \d+m", "offset 15s", text)


@dataclass
class World:
    """The running system and how to ask about it."""

    stack: Stack
    home: Path
    prometheus: str  # base URL

    @property
    def gateway(self) -> str:
        return self.stack.gateway_url

    def process(self, service: str) -> Process:
        current = local.state.read(self.home)
        assert current is not None
        return current.services[service].process(service)

    def query(self, promql: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._api("query", query=promql)["result"]
        return found

    def firing(self) -> set[str]:
        return {a["labels"]["alertname"] for a in self._api("alerts")["alerts"] if a["state"] == "firing"}

    def evaluations(self) -> dict[str, str]:
        """When each rule was evaluated last."""
        groups = self._api("rules")["groups"]
        return {rule["name"]: rule["lastEvaluation"] for group in groups for rule in group["rules"]}

    def _api(self, what: str, **query: str) -> Any:
        url = f"{self.prometheus}/api/v1/{what}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.load(answer)["data"]


def until(holds: Callable[[], Any], *, within_seconds: float = 120.0, why: str = "") -> Any:
    """The condition's first true value."""
    deadline = time.monotonic() + within_seconds
    while True:
        value = holds()
        if value:
            return value
        assert time.monotonic() < deadline, f"not within {within_seconds} s: {why}"
        time.sleep(0.2)


@contextmanager
def running(directory: Path) -> Iterator[World]:
    """Start everything, and stop it whatever happens."""
    from tests.tiny_model import write_model

    home, model = directory / "home", write_model(directory / "tiny")
    env = ENV | {"CLAWBACK_POLICY_MODEL": str(model), "CLAWBACK_TRAINER_MODEL": str(model)}
    stack = local.up(home, env=env, wait_seconds=240.0)
    try:
        with _prometheus(directory, stack) as url:
            yield World(stack, home, url)
    finally:
        local.down(home)


@contextmanager
def _prometheus(directory: Path, stack: Stack) -> Iterator[str]:
    assert PROMETHEUS is not None
    rules, config, port = directory / "rules.yaml", directory / "prometheus.yml", free_port()
    rules.write_text(shortened(RULES.read_text(encoding="utf-8")))
    targets = [entry.url.removeprefix("http://") for entry in stack.services.values()]
    every = f"{SCRAPE_SECONDS}s"
    content = {
        "global": {"scrape_interval": every, "scrape_timeout": every, "evaluation_interval": every},
        "rule_files": [str(rules)],
        "scrape_configs": [{"job_name": "clawback", "static_configs": [{"targets": targets}]}],
    }
    config.write_text(yaml.safe_dump(content))
    argv = [
        PROMETHEUS,
        f"--config.file={config}",
        f"--storage.tsdb.path={directory / 'tsdb'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    process = spawn("prometheus", argv, directory / "prometheus.log", {"PATH": "/usr/bin:/bin"})
    url = f"http://127.0.0.1:{port}"
    try:
        until(lambda: _ready(url) or _dead(process), why="Prometheus is ready")
        yield url
    finally:
        process.stop(10.0)


def _ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/-/ready", timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def _dead(process: Process) -> bool:
    assert process.alive(), process.tail()
    return False


def chat(base: str, session: str, said: list[str], scenario: str = "homework", **body: Any) -> list[str]:
    """Hold a conversation: each text answers the reply before it. Returns the replies."""
    messages: list[dict[str, str]] = []
    replies = []
    for text in said:
        messages.append({"role": "user", "content": text})
        request = urllib.request.Request(
            f"{base}/v1/chat/completions",
            json.dumps({"model": "tiny", "messages": messages, "max_tokens": 12, **body}).encode(),
            {
                "content-type": "application/json",
                "x-reef-tag-session": session,
                "x-reef-scenario": scenario,
                "authorization": "Bearer key",
            },
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            reply = json.load(answer)["choices"][0]["message"]["content"] or ""
        messages.append({"role": "assistant", "content": reply})
        replies.append(reply)
    return replies
