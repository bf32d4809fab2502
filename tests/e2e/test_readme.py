"""README.md's section on connecting an agent, run as it stands: set-up, up, the Python, status, tap, down."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from deploy.local import state
from tests.readme_commands import ROOT, TEXT

pytestmark = [pytest.mark.e2e, pytest.mark.model, pytest.mark.timeout(600)]


def section(title: str) -> list[tuple[str, str]]:
    """(language, code) of the blocks under a heading, in order."""
    body = re.search(rf"^## {title}\n(.*?)(?=^## )", TEXT, re.MULTILINE | re.DOTALL)
    assert body is not None
    return re.findall(r"^```(\w+)\n(.*?)^```", body.group(1), re.MULTILINE | re.DOTALL)


def test_the_section_on_connecting_an_agent_runs(tmp_path: Path, models: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "models").symlink_to(models)
    env = dict(os.environ) | {"CLAWBACK_HOME": str(home), "NO_PROXY": "127.0.0.1"}
    output: list[str] = []
    try:
        for language, code in section("Run it and connect an agent"):
            if language == "python":
                stack = state.read(home)
                assert stack is not None
                exec(compile(code, "README.md", "exec"), {"gateway": stack.gateway_url})
                continue
            for line in code.splitlines():
                run = subprocess.run(
                    line, shell=True, cwd=ROOT, env=env, capture_output=True, text=True, timeout=300, check=False
                )
                assert run.returncode == 0, f"{line}\n{run.stdout}\n{run.stderr}"
                output.append(run.stdout)
    finally:
        subprocess.run([".venv/bin/clawback", "down"], cwd=ROOT, env=env, check=False, timeout=120)
    assert any("gateway http://127.0.0.1:" in text for text in output)
    assert "stopped" in output[-1]
    assert state.read(home) is None
