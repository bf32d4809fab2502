"""A process has ended when it holds nothing any more."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from deploy.local.process import Process, spawn, stop_all, wait_until
from deploy.local.stack import NAMES, waves

# The first thread leaves by the bare system call, as the kernel has it between the ends of two threads.
LINGERS = """
import ctypes, platform, sys, threading
threading.Thread(target=sys.stdin.read).start()
ctypes.CDLL(None).syscall({"x86_64": 60, "aarch64": 93}[platform.machine()], 0)
"""


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_process_lives_until_its_last_thread_is_gone(tmp_path: Path) -> None:
    held = tmp_path / "held"
    os.mkfifo(held)
    code = LINGERS.replace("sys.stdin.read", f"open({str(held)!r}).read")
    process = spawn("lingers", [sys.executable, "-c", code], tmp_path / "log", {})
    with held.open("w"):
        assert wait_until(lambda: _state(process.pid) == "Z", 10.0), process.tail()
        assert process.alive()
    assert wait_until(lambda: not process.alive(), 10.0)
    process.stop(1.0)


# On SIGTERM each says so and ends only once the other has heard it as well.
WAITS_FOR_THE_OTHER = """
import pathlib, signal, sys, time
own, other = map(pathlib.Path, sys.argv[1:])
def end(*_):
    own.with_suffix(".told").touch()
    while not other.with_suffix(".told").exists():
        time.sleep(0.01)
    own.with_suffix(".ended").touch()
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
own.touch()
while True:
    time.sleep(60)
"""


def _started(code: str, tmp_path: Path, name: str, other: str) -> Process:
    argv = [sys.executable, "-c", code, str(tmp_path / name), str(tmp_path / other)]
    process = spawn(name, argv, tmp_path / f"{name}.log", {})
    assert wait_until((tmp_path / name).exists, 10.0), process.tail()
    return process


def test_processes_stop_at_the_same_time(tmp_path: Path) -> None:
    one, two = (_started(WAITS_FOR_THE_OTHER, tmp_path, *names) for names in (("one", "two"), ("two", "one")))
    assert stop_all([one, two], 20.0) == []
    assert not one.alive() and not two.alive()
    assert (tmp_path / "one.ended").exists() and (tmp_path / "two.ended").exists(), "by themselves"


def test_one_that_does_not_end_is_killed_and_named(tmp_path: Path) -> None:
    deaf = _started(
        "import pathlib, signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        "pathlib.Path(sys.argv[1]).touch(); time.sleep(60)",
        tmp_path,
        "deaf",
        "none",
    )
    assert stop_all([deaf], 0.2) == [deaf]
    assert not deaf.alive()


def test_the_gateway_stops_first_and_broker_and_redis_last() -> None:
    assert waves([*NAMES, "broker", "redis"]) == [
        ["gateway"],
        ["monitor", "matcher", "judge", "batcher", "trainer", "policy"],
        ["broker", "redis"],
    ]
    assert waves(["redis", "batcher"]) == [[], ["batcher"], ["redis"]]
