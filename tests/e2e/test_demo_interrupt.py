"""Ctrl-C while the demo runs stops everything that it started and leaves a summary that claims nothing."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from deploy.local import state
from deploy.local.process import wait_until
from tests.e2e.conftest import ROOT

pytestmark = [pytest.mark.e2e, pytest.mark.model, pytest.mark.timeout(400)]


@pytest.fixture
def demo(tmp_path: Path, models: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A demo of four sessions in `tmp_path`: its home, its run folder and its log."""
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "models").symlink_to(models)
    with (tmp_path / "demo.log").open("wb") as sink:
        running = subprocess.Popen(
            [sys.executable, "-m", "libs.cli", "demo", "--sessions", "4", "--output", str(tmp_path / "run")],
            cwd=ROOT,
            env=dict(os.environ) | {"CLAWBACK_HOME": str(tmp_path / "home"), "PYTHONUNBUFFERED": "1"},
            stdout=sink,
            stderr=subprocess.STDOUT,
            # A shell that runs the suite in the background has its children ignore Ctrl-C, which is not what is tested.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
    yield running
    running.kill()


def test_ctrl_c_leaves_nothing_running(demo: subprocess.Popen[bytes], tmp_path: Path) -> None:
    home, log = tmp_path / "home", tmp_path / "demo.log"
    assert wait_until(lambda: b"base: first replies" in log.read_bytes(), 240.0), log.read_text()
    stack = state.read(home)
    assert stack is not None and stack.supervisor is not None
    pids = [e.pid for e in (*stack.services.values(), *stack.infrastructure.values(), stack.supervisor)]
    assert len(pids) == 10 and all(psutil.pid_exists(pid) for pid in pids)
    demo.send_signal(signal.SIGINT)
    assert demo.wait(timeout=120) == 130
    assert [pid for pid in pids if psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie"] == []
    assert "interrupted" in log.read_text()
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["finished"] is False and summary["adapted"] is None


def test_sigterm_while_the_stack_starts_leaves_nothing_running(demo: subprocess.Popen[bytes], tmp_path: Path) -> None:
    log = tmp_path / "demo.log"
    assert wait_until(lambda: b"gateway is ready" in log.read_bytes(), 120.0), log.read_text()
    demo.send_signal(signal.SIGTERM)
    assert demo.wait(timeout=120) == 130, log.read_text()
    assert _of(tmp_path / "home") == []


def _of(home: Path) -> list[str]:
    """What still runs for this home."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("CLAWBACK_HOME") == str(home):
                found.append(" ".join(process.cmdline()))
    return found
