"""What may hold keys, passwords or people's words can be read by its owner alone, from its first byte on."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.local import stack, state
from deploy.local.process import spawn, wait_until
from libs.errors import ConfigError


@pytest.fixture(autouse=True)
def open_handed() -> Iterator[None]:
    """A umask under which nothing is private by itself."""
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_a_file_is_private_while_it_is_written_and_after(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, seen = tmp_path / "plan.json", []
    path.write_text("from before")
    path.chmod(0o644)
    create = os.open

    def opened(name: Path, *args: int) -> int:
        made = create(name, *args)
        seen.append(os.fstat(made).st_mode & 0o777)
        return made

    monkeypatch.setattr(os, "open", opened)
    state.write_private(path, b"secret")
    assert (seen, mode(path), path.read_bytes()) == ([0o600], 0o600, b"secret")
    assert [p.name for p in tmp_path.iterdir()] == ["plan.json"]


def test_a_part_that_somebody_left_open_is_not_written_into(tmp_path: Path) -> None:
    left = tmp_path / f"plan.{os.getpid()}.part"
    left.write_text("")
    left.chmod(0o666)
    state.write_private(tmp_path / "plan.json", b"secret")
    assert mode(tmp_path / "plan.json") == 0o600


def test_what_a_stack_writes_is_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`up` with a secret, as far as the supervisor's start."""
    home = tmp_path / "home"
    held: dict[str, int] = {}

    def no_supervisor(*_: object, **__: object) -> None:
        held.update({p.name: mode(p) for p in home.iterdir()})
        raise ConfigError("far enough")

    monkeypatch.setattr(stack, "spawn", no_supervisor)
    with pytest.raises(ConfigError, match="far enough"):
        stack.up(home, services=["batcher"], env={"CLAWBACK_GATEWAY_TOKENS": "secret"})
    assert b"secret" in (home / "plan.json").read_bytes()
    assert (mode(home), held) == (0o700, {"plan.json": 0o600})
    state.Stack(home=str(home), redis_url="redis://:secret@host/0").write()
    assert mode(home / "stack.json") == 0o600


def test_a_log_is_private(tmp_path: Path) -> None:
    process = spawn("says", [sys.executable, "-c", "print('words')"], tmp_path / "logs" / "log", {})
    assert wait_until(lambda: not process.alive(), 30.0)
    process.reap()
    assert (mode(tmp_path / "logs" / "log"), process.tail()) == (0o600, "words")
