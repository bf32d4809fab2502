"""Set-up on a bare machine: a failure that a person can mend is told with its fix, and what is done is skipped."""

from __future__ import annotations

import hashlib
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from libs.cli import bootstrap
from libs.cli.bootstrap import SetupError
from libs.cli.running import PipProgress


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


@pytest.mark.parametrize(
    ("number", "told"),
    [("SIGKILL", "ended by SIGKILL; .*memory"), ("SIGTERM", "ended by SIGTERM"), ("SIGHUP", "ended by SIGHUP")],
)
def test_a_command_that_somebody_killed_is_not_run_again(tmp_path: Path, number: str, told: str) -> None:
    runs = tmp_path / "runs"
    script = f"import os, signal; open({str(runs)!r}, 'a').write('x'); os.kill(os.getpid(), signal.{number})"
    with pytest.raises(SetupError, match=f"installing was {told}"):
        bootstrap.run([sys.executable, "-c", script], what="installing", attempts=3)
    assert runs.read_text() == "x"


@pytest.mark.parametrize(
    "ends",
    [
        "signal.signal(2, signal.SIG_DFL); os.kill(os.getpid(), 2)",
        "print('ERROR: Operation cancelled by user'); sys.exit(1)",
    ],
)
def test_a_command_that_heard_ctrl_c_stops_set_up(tmp_path: Path, ends: str) -> None:
    runs = tmp_path / "runs"
    script = f"import os, signal, sys; open({str(runs)!r}, 'a').write('x'); {ends}"
    with pytest.raises(KeyboardInterrupt):
        bootstrap.run([sys.executable, "-c", script], what="installing", attempts=3)
    assert runs.read_text() == "x"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_and_term_stop_set_up_and_the_pip_under_it(tmp_path: Path, number: signal.Signals) -> None:
    """The whole program, as make runs it; the Python of its environment is one whose pip goes on for ever."""
    root = tmp_path / "clawback"
    for name in ("libs/cli/bootstrap.py", "libs/cli/running.py", "requirements.lock", "pyproject.toml"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(bootstrap.ROOT / name, root / name)
    mark, python = tmp_path / "pip.pid", root / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(
        f'#!/bin/sh\ncase "$*" in *--version*) exit 0;; esac\necho $$ > {mark}.part\n'
        f"mv {mark}.part {mark}\nexec sleep 600\n"
    )
    python.chmod(0o755)
    set_up = subprocess.Popen(
        [sys.executable, "-I", root / "libs/cli/bootstrap.py", "--env-only"],
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background job ignores it
    )
    while not mark.exists():
        assert set_up.poll() is None
    pip = mark.read_text().strip()
    set_up.send_signal(number)
    told = set_up.communicate()[1]
    assert (set_up.returncode, "set-up interrupted" in told) == (130, True)
    assert not Path(f"/proc/{pip}").exists()


PIP = """Collecting torch==2.13.0 (from -r requirements.lock (line 1))
  Downloading torch-2.13.0-cp311-cp311-linux_x86_64.whl.metadata (28 kB)
Collecting aiohttp==3.14.5 (from -r requirements.lock (line 2))
Processing /wheels/idna-3.20-py3-none-any.whl (from -r requirements.lock (line 3))
Requirement already satisfied: attrs in ./lib (from aiohttp)
Downloading torch-2.13.0-cp311-cp311-linux_x86_64.whl (178.2 MB)
Downloading aiohttp-3.14.5-cp311-cp311-linux_x86_64.whl (1.7 MB)
Installing collected packages: aiohttp, torch
"""


def test_the_progress_of_pip_is_told_while_it_works(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    progress = PipProgress(4, tmp_path)
    for line in PIP.splitlines():
        progress.line(line)
    (tmp_path / "aiohttp-3.14.5.dist-info").mkdir()
    progress.tick()
    progress.tick()
    (tmp_path / "torch-2.13.0.dist-info").mkdir()
    progress.tick()
    assert [line.strip() for line in capsys.readouterr().out.splitlines()] == [
        "found 1 of 4 packages  torch==2.13.0",
        "found 2 of 4 packages  aiohttp==3.14.5",
        "found 3 of 4 packages  idna-3.20-py3-none-any.whl",
        "found 4 of 4 packages  attrs",
        "downloading torch (178.2 MB)",
        "installed 1 of 4 packages",
        "installed 2 of 4 packages",
    ]
