"""Ctrl-C while the demo runs stops everything that it started and leaves a summary that claims nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from deploy.local import state
from deploy.local.process import wait_until
from tests.e2e.conftest import ROOT

pytestmark = [pytest.mark.e2e, pytest.mark.model, pytest.mark.timeout(400)]


def test_ctrl_c_leaves_nothing_running(tmp_path: Path, models: Path) -> None:
    home, out, log = tmp_path / "home", tmp_path / "run", tmp_path / "demo.log"
    home.mkdir()
    (home / "models").symlink_to(models)
    with log.open("wb") as sink:
        demo = subprocess.Popen(
            [sys.executable, "-m", "libs.cli", "demo", "--sessions", "4", "--output", str(out)],
            cwd=ROOT,
            env=dict(os.environ) | {"CLAWBACK_HOME": str(home), "PYTHONUNBUFFERED": "1"},
            stdout=sink,
            stderr=subprocess.STDOUT,
            # A shell that runs the suite in the background has its children ignore Ctrl-C, which is not what is tested.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
    try:
        assert wait_until(lambda: b"base: first replies" in log.read_bytes(), 240.0), log.read_text()
        stack = state.read(home)
        assert stack is not None and stack.supervisor is not None
        pids = [e.pid for e in (*stack.services.values(), *stack.infrastructure.values(), stack.supervisor)]
        assert len(pids) == 10 and all(psutil.pid_exists(pid) for pid in pids)
        demo.send_signal(signal.SIGINT)
        assert demo.wait(timeout=120) == 130
    finally:
        demo.kill()
    assert [pid for pid in pids if psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie"] == []
    assert "interrupted" in log.read_text()
    summary = json.loads((out / "summary.json").read_text())
    assert summary["finished"] is False and summary["adapted"] is None
