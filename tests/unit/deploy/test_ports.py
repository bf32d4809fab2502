"""A port kept for a server is one that no client of this machine is given meanwhile."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from deploy.local import process


def test_a_free_port_is_outside_the_ephemeral_range_and_never_given_twice() -> None:
    found = [process.free_port() for _ in range(40)]
    assert len(set(found)) == 40
    assert not set(found) & set(process._ephemeral())


def test_the_range_is_the_kernels_or_the_registered_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_EPHEMERAL_FILE", tmp_path / "range")
    assert process._ephemeral() == range(49152, 65536)
    (tmp_path / "range").write_text("40000\t41000\n")
    assert process._ephemeral() == range(40000, 41001)


def test_a_machine_that_lends_every_port_still_gives_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_EPHEMERAL_FILE", tmp_path / "range")
    (tmp_path / "range").write_text("1024 65535")
    with socket.socket() as server:
        server.bind(("127.0.0.1", process.free_port()))


def test_a_taken_port_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", process.free_port()))
        port = taken.getsockname()[1]
        monkeypatch.setattr(process, "_given", set())
        monkeypatch.setattr(process, "_FIRST_PORT", port)
        monkeypatch.setattr(process, "_LAST_PORT", port + 1)
        assert process.free_port() == port + 1
