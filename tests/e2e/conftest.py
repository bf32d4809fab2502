"""Whole local stacks with the real model, each in a home of its own, stopped whatever happens."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from deploy.local import stack as local
from deploy.local.state import Stack

ROOT = Path(__file__).parents[2]
MODEL = "smollm2-135m-instruct"

Starter = Callable[[dict[str, str]], contextlib.AbstractContextManager[Stack]]


@pytest.fixture(scope="session")
def models() -> Path:
    """The directory with the converted base model. `make test` prepares it; its absence is a failure, not a skip."""
    found = Path(os.environ.get("CLAWBACK_HOME") or ROOT / ".clawback").resolve() / "models"
    if not (found / MODEL / "config.json").exists():
        pytest.fail(f"no base model in {found}; run `make setup`")
    return found


@pytest.fixture
def start(tmp_path: Path, models: Path) -> Starter:
    """`with start({"CLAWBACK_...": "..."}) as stack:` runs a whole stack."""

    @contextlib.contextmanager
    def running(env: dict[str, str]) -> Iterator[Stack]:
        home = tmp_path / "home"
        home.mkdir(exist_ok=True)
        (home / "models").symlink_to(models)
        try:
            yield local.up(home, env=env, wait_seconds=300.0)
        finally:
            local.down(home)

    return running
