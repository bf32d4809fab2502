"""Set-up on a bare machine: a failure that a person can mend is told with its fix, and what is done is skipped."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest

from libs.cli import bootstrap
from libs.cli.bootstrap import SetupError


@pytest.mark.parametrize(
    ("output", "fix"),
    [
        ("ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device", "disk is full"),
        ("error: command 'gcc' failed: No such file or directory", "C compiler"),
        ("error: command '/usr/bin/x86_64-linux-gnu-gcc' failed with exit code 1", "C compiler"),
        ("fatal error: Python.h: No such file or directory", "C compiler"),
        ("NewConnectionError('<...>: Failed to establish a new connection: [Errno -3]", "cannot be reached"),
        ("ERROR: Could not find a version that satisfies the requirement x (from versions: none)", "cannot be reached"),
        ("THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE.", "damaged"),
        ("urllib3.exceptions.IncompleteRead: IncompleteRead(1234 bytes read)", "cannot be reached"),
    ],
)
def test_each_cause_has_its_advice(output: str, fix: str) -> None:
    assert fix in (bootstrap.cause_of(output) or "")


def test_an_unknown_failure_gets_no_made_up_advice() -> None:
    assert bootstrap.cause_of("Segmentation fault") is None


def test_an_old_python_is_named_with_the_way_out() -> None:
    with pytest.raises(SetupError, match=r"Python 3\.11 or later is needed.*3\.9\.2.*make PYTHON=python3\.11"):
        bootstrap.check_python((3, 9, 2))
    bootstrap.check_python((3, 11, 0))


def test_a_python_without_venv_is_named_with_the_package() -> None:
    with pytest.raises(SetupError, match="apt-get install python3"):
        bootstrap.check_modules(("no_such_module_here",))


def test_a_full_disk_is_seen_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"0\.5 GiB are free.*CLAWBACK_HOME"):
        bootstrap.check_disk(tmp_path, 4.0, free_bytes=2**29)
    bootstrap.check_disk(tmp_path, 4.0, free_bytes=2**33)


def test_a_failed_command_shows_its_last_lines_and_the_advice(tmp_path: Path) -> None:
    script = "import sys; print('line one'); print('No space left on device'); sys.exit(2)"
    with pytest.raises(SetupError, match=r"(?s)line one.*installing failed: the disk is full"):
        bootstrap.run([sys.executable, "-c", script], what="installing")


def test_a_passing_failure_is_tried_again(tmp_path: Path) -> None:
    mark = tmp_path / "tried"
    script = (
        f"import pathlib,sys; p=pathlib.Path({str(mark)!r}); done=p.exists(); p.touch(); sys.exit(0 if done else 1)"
    )
    bootstrap.run([sys.executable, "-c", script], what="fetching", attempts=2)


def pin(directory: Path, content: bytes) -> Path:
    path = directory / "pins.lock"
    path.write_text(f"x==1 --hash=sha256:{hashlib.sha256(content).hexdigest()}\n")
    return path


def test_a_half_downloaded_wheel_is_removed_and_fetched_anew(tmp_path: Path) -> None:
    wheel = tmp_path / "x-1-py3-none-any.whl"
    wheel.write_bytes(b"whole"[:3])
    assert bootstrap._wheel(tmp_path, pin(tmp_path, b"whole")) is None
    assert not wheel.exists()
    wheel.write_bytes(b"whole")
    assert bootstrap._wheel(tmp_path, pin(tmp_path, b"whole")) == wheel


def test_what_a_dead_conversion_left_is_swept_and_a_live_one_is_not(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    dead = tmp_path / f"m.partial-{ended.pid}"
    live = tmp_path / "m.partial-1"
    dead.mkdir()
    live.mkdir()
    bootstrap._sweep(tmp_path)
    assert not dead.exists() and live.exists()


def test_a_finished_model_is_left_alone(tmp_path: Path) -> None:
    target = tmp_path / "models" / "m"
    target.mkdir(parents=True)
    (target / "config.json").write_text("{}")
    bootstrap.model(Path("/no/such/python"), target)


def test_the_stamp_changes_with_the_lock(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    lock.write_text("a==1\n")
    before = bootstrap.digest(lock)
    lock.write_text("a==2\n")
    assert bootstrap.digest(lock) != before


def test_set_up_needs_nothing_but_the_standard_library() -> None:
    code = f"import runpy; runpy.run_path({bootstrap.__file__!r}, run_name='x')"
    subprocess.run([sys.executable, "-I", "-S", "-c", code], check=True)
