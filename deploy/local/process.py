"""Start and stop processes by pid. A pid alone may have been reused, so a process is named by pid and start time."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from libs.errors import ConfigError

_POLL_SECONDS = 0.05
_FIRST_PORT, _LAST_PORT = 10_000, 65_535  # below lie the well-known services that someone may start later
_PORT_TRIES = 64
_EPHEMERAL_FILE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_given: set[int] = set()  # a port is handed out once per process: two callers both find it free until one binds it


@dataclass(frozen=True, slots=True)
class Process:
    """A process that this stack started."""

    name: str
    pid: int
    started: float  # unix seconds, as the kernel has it
    log: Path

    def alive(self) -> bool:
        """Whether this very process runs. A zombie does not, once its last thread is gone: until then one of
        them holds its ports and files, though the first thread is a zombie already.
        """
        try:
            found = psutil.Process(self.pid)
            ended = found.status() == psutil.STATUS_ZOMBIE and found.num_threads() <= 1
            return bool(abs(found.create_time() - self.started) < 1.0 and not ended)
        except psutil.NoSuchProcess:
            return False

    def signal(self, number: int) -> None:
        """Send a signal to it and to nothing else."""
        if self.alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def stop(self, grace_seconds: float) -> bool:
        """SIGTERM, then SIGKILL after the grace. True when it ended by itself."""
        return not stop_all([self], grace_seconds)

    def reap(self) -> None:
        """Take its exit status if it is a child of this process, so that no zombie stays."""
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, os.WNOHANG)

    def tail(self, lines: int = 15) -> str:
        """The end of its log."""
        try:
            return "\n".join(self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])
        except OSError:
            return ""


def spawn(name: str, argv: Sequence[str], log: Path, env: Mapping[str, str], cwd: Path | None = None) -> Process:
    """Start a process in a session of its own, stdout and stderr appended to `log`. Raises ConfigError.

    Only its owner can read the log: a service's last words may hold what it worked on.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    try:
        with os.fdopen(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as out:
            child = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=dict(env), cwd=cwd, start_new_session=True
            )
    except OSError as error:
        raise ConfigError(
            f"cannot start {name} ({argv[0]}): {error.strerror}; install it again or free the disk"
        ) from (error)
    child.returncode = 0  # its end is watched through psutil; Popen must not complain about a running child
    try:
        started = psutil.Process(child.pid).create_time()
    except psutil.NoSuchProcess:
        started = time.time()
    return Process(name, child.pid, started, log)


def stop_all(processes: Sequence[Process], grace_seconds: float) -> list[Process]:
    """Stop them at the same time: SIGTERM, then SIGKILL after the grace. Returns those that had to be killed."""
    for process in processes:
        process.signal(signal.SIGTERM)
        process.signal(signal.SIGCONT)  # a stopped process acts on nothing
    wait_until(lambda: not any(process.alive() for process in processes), grace_seconds)
    killed = [process for process in processes if process.alive()]
    for process in killed:
        process.signal(signal.SIGKILL)
    wait_until(lambda: not any(process.alive() for process in killed), 5.0)
    for process in processes:
        process.reap()
    return killed


def wait_until(ready: Callable[[], bool], timeout_seconds: float) -> bool:
    """Poll until it holds. False after the timeout."""
    deadline = time.monotonic() + timeout_seconds
    while not ready():
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True


def free_port(host: str = "127.0.0.1") -> int:
    """A port that is free now, and that no outgoing connection of this machine takes by itself later.

    The kernel lends its ephemeral range to every client; a server that gives such a port back for a restart
    may find a client on it.
    """
    lent = _ephemeral()
    candidates = [port for port in range(_FIRST_PORT, _LAST_PORT + 1) if port not in lent and port not in _given]
    for port in random.sample(candidates, min(len(candidates), _PORT_TRIES)):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((host, port))
            _given.add(port)
            return port
    with socket.socket() as probe:  # no port outside the range: the kernel's choice is the next best
        probe.bind((host, 0))
        found: int = probe.getsockname()[1]
        return found


def _ephemeral() -> range:
    """The ports that the kernel gives to outgoing connections (ip(7), ip_local_port_range)."""
    try:
        first, last = map(int, _EPHEMERAL_FILE.read_text().split())
    except (OSError, ValueError):
        first, last = 49152, 65535  # RFC 6335, section 6: what other systems use
    return range(first, last + 1)


def check_port(name: str, port: int, host: str = "127.0.0.1") -> None:
    """Raise ConfigError with the fix when something listens on the port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise ConfigError(
                f"{name}: port {port} on {host} cannot be used ({error.strerror}); stop what uses it "
                f"(`ss -ltnp 'sport = :{port}'` shows it) or choose another port"
            ) from error


def accepts(port: int, host: str = "127.0.0.1") -> bool:
    """Whether something accepts connections there."""
    with socket.socket() as probe:
        probe.settimeout(0.5)
        return probe.connect_ex((host, port)) == 0
