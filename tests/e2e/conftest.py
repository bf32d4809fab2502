"""Whole local stacks with the real model, each in a home of its own, stopped whatever happens."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from deploy.local import stack as local
from deploy.local.state import Stack
from tests.tiny_model import write_model

ROOT = Path(__file__).parents[2]
MODEL = "smollm2-135m-instruct"
# A random model has nothing to collapse from; the gate and the guard would hold every release.
SMALL_ENV = {"CLAWBACK_TRAINER_GATE": "false", "CLAWBACK_TRAINER_GUARD": "false"}

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
    """`with start({"CLAWBACK_...": "..."}) as stack:` runs a whole stack with the real model."""
    return _starter(tmp_path / "home", models)


@pytest.fixture
def start_small(tmp_path: Path) -> Starter:
    """The same with a random Llama of a few thousand parameters: for what does not depend on what is said."""
    write_model(tmp_path / "small" / MODEL)
    starter = _starter(tmp_path / "home", tmp_path / "small")
    return lambda env: starter(SMALL_ENV | env)


def _starter(home: Path, models: Path) -> Starter:
    @contextlib.contextmanager
    def running(env: dict[str, str]) -> Iterator[Stack]:
        home.mkdir(exist_ok=True)
        (home / "models").symlink_to(models)
        try:
            yield local.up(home, env=env, wait_seconds=300.0)
        finally:
            local.down(home)

    return running
