"""The local stack: a broker, a Redis and every service as processes of this machine.

`up` starts a supervisor (deploy.local.supervisor) that owns the processes and restarts a service that dies; `down` asks
it to stop them, and stops by pid what is left if the supervisor is gone. All state lies under `home`.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from deploy.local import state
from deploy.local.process import Process, check_port, spawn, stop_all, wait_until
from deploy.local.state import Entry, Stack
from libs.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]
PLAN = "plan.json"
_NEED_BYTES = 1024**3


class Plan(msgspec.Struct, kw_only=True):
    """What to start. Ports that are not given are chosen; env holds CLAWBACK_<FIELD> for all or for one service."""

    home: str
    services: list[str]
    ports: dict[str, int] = {}
    env: dict[str, str] = {}
    service_env: dict[str, dict[str, str]] = {}
    kafka_bootstrap_servers: str = ""  # an own broker is started when empty
    redis_url: str = ""  # an own Redis is started when empty
    partitions: int = 0  # of topics that may have several; 0: what topics.yaml says for one machine


@dataclass(frozen=True, slots=True)
class Service:
    """One row of the table: what a service needs beyond what all have, given everyone's URL."""

    name: str
    env: Mapping[str, str] = field(default_factory=dict)  # "{name}": that service's URL, {home}, {threads}


# Threads that spin while they wait take the cores from the other services.
_TORCH = {"OMP_NUM_THREADS": "{threads}", "OMP_WAIT_POLICY": "passive"}

# In starting order. How they stop: `waves`.
SERVICES: tuple[Service, ...] = (
    Service("policy", _TORCH),
    Service("trainer", _TORCH),
    Service("batcher"),
    Service("judge"),
    Service("matcher"),
    Service("monitor"),
    Service("gateway", {"CLAWBACK_GATEWAY_UPSTREAM_URL": "{policy}"}),
)
NAMES: tuple[str, ...] = tuple(service.name for service in SERVICES)


def up(
    home: Path,
    *,
    services: Sequence[str] = NAMES,
    ports: Mapping[str, int] | None = None,
    env: Mapping[str, str] | None = None,
    service_env: Mapping[str, Mapping[str, str]] | None = None,
    partitions: int = 0,
    wait_seconds: float = 180.0,
    on_event: Callable[[str], None] = lambda _text: None,
) -> Stack:
    """Start everything and return once every service is ready.

    `ports` fixes HTTP ports by service name, or "broker" and "redis". CLAWBACK_KAFKA_BOOTSTRAP_SERVERS and
    CLAWBACK_REDIS_URL in the environment name a broker and a Redis to use instead of own ones. Raises ConfigError with
    the fix: already up, a port taken, a binary missing, a full disk, a service that does not come up (with its log).
    """
    home = home.resolve()
    _check(home, services, ports or {})
    plan = Plan(
        home=str(home),
        services=[name for name in NAMES if name in services],
        ports=dict(ports or {}),
        env=dict(env or {}),
        service_env={name: dict(values) for name, values in (service_env or {}).items()},
        kafka_bootstrap_servers=os.environ.get("CLAWBACK_KAFKA_BOOTSTRAP_SERVERS", ""),
        redis_url=os.environ.get("CLAWBACK_REDIS_URL", ""),
        partitions=partitions,
    )
    state.write_private(home / PLAN, msgspec.json.encode(plan))  # env may hold keys and passwords
    (home / state.FILE).unlink(missing_ok=True)
    supervisor = spawn(
        "supervisor",
        [sys.executable, "-m", "deploy.local.supervisor", str(home)],
        home / "logs" / "supervisor.log",
        os.environ,
        cwd=ROOT,
    )
    try:
        return _wait_ready(home, supervisor, time.monotonic() + wait_seconds, on_event)
    except BaseException:  # Ctrl-C as well: leave nothing behind
        supervisor.stop(60.0)
        down(home)
        raise


def down(home: Path, *, grace_seconds: float = 90.0, on_event: Callable[[str], None] = lambda _text: None) -> list[str]:
    """Stop the stack of this home. Returns the names of what ran; an empty list when nothing did.

    `on_event` hears of each process as it ends.
    """
    stack = state.read(home.resolve())
    if stack is None:
        return []
    entries = {**stack.infrastructure, **stack.services}
    order = [name for wave in waves(entries) for name in wave]
    left = {name: process for name in order if (process := entries[name].process(name)).alive()}
    ran = [name for name in entries if name in left]

    def ended(supervisor: Process | None = None) -> bool:
        for name in [name for name, process in left.items() if not process.alive()]:
            del left[name]
            on_event(f"{name} stopped")
        return supervisor is None or not supervisor.alive()

    if stack.supervisor is not None:
        supervisor = stack.supervisor.process("supervisor")
        supervisor.signal(signal.SIGTERM)
        supervisor.signal(signal.SIGCONT)
        wait_until(lambda: ended(supervisor), grace_seconds)
        supervisor.stop(0.0)
        stack = state.read(home.resolve()) or stack
    found = {**stack.infrastructure, **stack.services}
    for wave in waves(found):  # what a killed supervisor has left behind
        stop_all([found[name].process(name) for name in wave], 10.0)
    ended()
    (home / state.FILE).unlink(missing_ok=True)
    return ran


def waves(names: Collection[str]) -> list[list[str]]:
    """What may stop at the same time, in order: the gateway takes no more requests, then all that works on what it
    took, then what they all write to.
    """
    first = [name for name in names if name == "gateway"]
    services = [name for name in reversed(NAMES) if name in names and name != "gateway"]
    return [first, services, [name for name in names if name not in NAMES]]


@dataclass(frozen=True, slots=True)
class Health:
    """One process of the stack as it is now."""

    name: str
    alive: bool
    ready: bool
    detail: str  # what /readyz says, when it is not ready
    entry: Entry


def status(home: Path) -> list[Health]:
    """Every process of the stack, infrastructure first; an empty list when nothing was started from this home."""
    stack = state.read(home.resolve())
    if stack is None:
        return []
    found = []
    for name, entry in {**stack.infrastructure, **stack.services}.items():
        alive = entry.process(name).alive()
        ready, detail = readiness(entry.url) if alive and entry.url else (alive, "" if alive else "not running")
        found.append(Health(name, alive, ready, detail, entry))
    return found


def readiness(url: str, timeout_seconds: float = 6.0) -> tuple[bool, str]:
    """What GET /readyz says: ready or not, and the body or the error."""
    try:
        with urllib.request.urlopen(f"{url}/readyz", timeout=timeout_seconds) as response:
            return True, str(response.read(), "utf-8", "replace")
    except urllib.error.HTTPError as error:
        return False, error.read().decode("utf-8", "replace")
    except (OSError, ValueError) as error:
        return False, str(error)


def _check(home: Path, services: Sequence[str], ports: Mapping[str, int]) -> None:
    unknown = set(services) - set(NAMES)
    if unknown:
        raise ConfigError(f"no such service: {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    strange = sorted(set(ports) - {*NAMES, "broker", "redis"})
    if strange:
        raise ConfigError(f"--port {strange[0]}: no such process; there are {', '.join((*NAMES, 'broker', 'redis'))}")
    for name, port in ports.items():
        if not 1 <= port <= 65535:
            raise ConfigError(f"--port {name}={port}: a port is a number from 1 to 65535")
        if twice := [other for other, same in ports.items() if same == port and other != name]:
            raise ConfigError(f"--port {name}={port}: {twice[0]} has it already; choose another port")
    running = state.read(home)
    if running is not None and running.supervisor is not None and running.supervisor.process("supervisor").alive():
        raise ConfigError(f"a stack already runs from {home}; `clawback down` stops it")
    if running is not None:
        down(home)  # left over from a supervisor that was killed
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        free = shutil.disk_usage(home).free
    except OSError as error:
        raise ConfigError(f"CLAWBACK_HOME: cannot use {home}: {error.strerror}; choose another folder") from error
    if free < _NEED_BYTES:
        raise ConfigError(f"the disk of {home} has {free / 1024**3:.1f} GiB free, 1 GiB is needed; free some")
    for name, port in ports.items():
        check_port(name, port)


def _wait_ready(home: Path, supervisor: Process, deadline: float, on_event: Callable[[str], None]) -> Stack:
    told: set[str] = set()
    answers: dict[str, str] = {}

    def ready() -> bool:
        stack = state.read(home)
        if stack is None or stack.phase == "starting":
            if not supervisor.alive():
                raise ConfigError(f"the local stack ended; {supervisor.log} ends:\n{supervisor.tail()}")
            return False
        if stack.phase != "running":
            raise ConfigError(stack.error or f"the local stack is {stack.phase}; see {supervisor.log}")
        for name, entry in stack.services.items():
            if name in told:
                continue
            if entry.restarts >= 3:
                raise ConfigError(f"{name} does not start; {entry.log} ends:\n{entry.process(name).tail()}")
            fine, answers[name] = readiness(entry.url, 2.0)
            if fine:
                told.add(name)
                on_event(f"{name} is ready at {entry.url}")
        return told >= set(stack.services)

    if not wait_until(ready, max(0.0, deadline - time.monotonic())):
        late = {name: answer for name, answer in answers.items() if name not in told}
        raise ConfigError(f"not ready in time: {late}; logs are in {home / 'logs'}")
    stack = state.read(home)
    assert stack is not None
    return stack
