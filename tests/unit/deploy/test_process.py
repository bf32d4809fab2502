"""A process has ended when it holds nothing any more."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from deploy.local.process import spawn, wait_until

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
