"""Owns the processes of a local stack: starts them in order, restarts a service that dies, stops them in reverse order.

Started by deploy.local.stack.up as `python -m deploy.local.supervisor HOME`; reads HOME/plan.json, writes stack.json.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
import psutil

from deploy.local import broker, redis
from deploy.local.process import Process, check_port, free_port, spawn, stop_all
from deploy.local.stack import PLAN, ROOT, SERVICES, Plan, Service, waves
from deploy.local.state import Entry, Stack
from deploy.topics.create import create
from libs.errors import ClawbackError
from libs.streams.config import ServiceSettings
from libs.telemetry import logs

_POLL_SECONDS = 0.2
_STEADY_SECONDS = 30.0  # a service that lived this long starts its restart delays anew
_MAX_DELAY_SECONDS = 10.0
_GRACE_SECONDS = 25.0
_log = logs.get_logger("supervisor")


class Supervisor:
    """One stack. `start` brings it up, `watch` keeps it up until `stopping` is set, `stop` takes it down."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._home = Path(plan.home)
        own = psutil.Process()
        self.stack = Stack(
            home=plan.home,
            supervisor=Entry(pid=own.pid, started=own.create_time(), log=str(self._home / "logs" / "supervisor.log")),
        )
        self._running: dict[str, Process] = {}
        self._starters: dict[str, Callable[[], Process]] = {}
        self._failures: dict[str, int] = {}
        self._due: dict[str, float] = {}
        self._env = dict(os.environ) | {"CLAWBACK_HOME": plan.home, "PYTHONUNBUFFERED": "1"} | plan.env
        self.stopping = False

    def start(self) -> None:
        """Start broker, Redis, topics and services. Raises ConfigError with the fix."""
        self.stack.write()
        self._start_broker()
        self._start_redis()
        services = [s for s in SERVICES if s.name in self._plan.services]
        ports = {s.name: self._port(s.name) for s in services}
        urls = {name: f"http://127.0.0.1:{port}" for name, port in ports.items()}
        for service in services:
            if self.stopping:
                return
            self._start_service(service, ports[service.name], urls)
        self.stack.phase = "running"
        self.stack.write()

    def watch(self) -> None:
        """Restart what died, with growing delays, until asked to stop."""
        while not self.stopping:
            for name, process in list(self._running.items()):
                if not process.alive():
                    self._died(name, process)
            for name in [n for n, due in self._due.items() if due <= time.monotonic()]:
                del self._due[name]
                self._restart(name)
            time.sleep(_POLL_SECONDS)

    def stop(self) -> None:
        """Stop all, wave by wave."""
        self.stopping = True
        if self.stack.phase != "failed":
            self.stack.phase = "stopping"
        self.stack.write()
        for wave in waves(self._running):
            for process in stop_all([self._running[name] for name in wave], _GRACE_SECONDS):
                _log.warning("killed: it did not stop in time", name=process.name, grace_seconds=_GRACE_SECONDS)
        self._running.clear()

    # --- parts -----------------------------------------------------------------------------------------------------

    def _start_broker(self) -> None:
        if self._plan.kafka_bootstrap_servers:
            self.stack.kafka_bootstrap_servers = self._plan.kafka_bootstrap_servers
        else:
            port = self._port("broker")
            self.stack.kafka_bootstrap_servers = f"127.0.0.1:{port}"
            self.stack.kafka_idempotent_producer = False
            self._env |= broker.CLIENT_ENV
            self._add("broker", lambda: broker.start(self._log_file("broker"), port)[0])
        self._env["CLAWBACK_KAFKA_BOOTSTRAP_SERVERS"] = self.stack.kafka_bootstrap_servers
        self._create_topics()

    def _create_topics(self) -> None:
        settings = ServiceSettings(
            kafka_bootstrap_servers=self.stack.kafka_bootstrap_servers,
        )
        created = asyncio.run(create(settings, local=True, partitions=self._plan.partitions))
        _log.info("topics", created=created)

    def _start_redis(self) -> None:
        if self._plan.redis_url:
            self.stack.redis_url = self._plan.redis_url
        else:
            port = self._port("redis")
            self.stack.redis_url = f"redis://127.0.0.1:{port}/0"
            self._add("redis", lambda: redis.start(self._log_file("redis"), port, data=self._home / "redis")[0])
        self._env["CLAWBACK_REDIS_URL"] = self.stack.redis_url

    def _start_service(self, service: Service, port: int, urls: dict[str, str]) -> None:
        threads = str(max(1, (os.cpu_count() or 2) // 2))
        known = {**urls, "home": self._plan.home, "threads": threads}
        # What names a service that is not started here is left to the settings that the caller gives.
        own = {k: known[v[1:-1]] for k, v in service.env.items() if v[1:-1] in known} | _plain(service.env)
        env = own | self._env | {"CLAWBACK_HTTP_PORT": str(port), "CLAWBACK_HTTP_HOST": "127.0.0.1"}
        env |= self._plan.service_env.get(service.name, {})
        argv = [sys.executable, "-m", f"services.{service.name}"]
        self._add(service.name, lambda: spawn(service.name, argv, self._log_file(service.name), env, ROOT), port)

    def _add(self, name: str, starter: Callable[[], Process], http_port: int = 0) -> None:
        self._starters[name] = starter
        process = starter()
        self._running[name] = process
        entry = Entry(pid=process.pid, started=process.started, log=str(process.log))
        if http_port:
            entry.url = f"http://127.0.0.1:{http_port}"
        (self.stack.services if http_port else self.stack.infrastructure)[name] = entry
        self.stack.write()

    def _died(self, name: str, process: Process) -> None:
        why = _exit_of(process)
        del self._running[name]
        lived = time.time() - process.started
        # SIGKILL comes from outside (an operator, the kernel short of memory) and does not tell of a broken service.
        fresh = lived > _STEADY_SECONDS or why == "signal SIGKILL"
        self._failures[name] = 0 if fresh else self._failures.get(name, 0) + 1
        delay = min(_MAX_DELAY_SECONDS, 0.1 * 2.0 ** self._failures[name])
        self._due[name] = time.monotonic() + delay
        entry = self.stack.services.get(name) or self.stack.infrastructure[name]
        entry.last_exit = why
        _log.warning("died", name=name, exit=why, lived_seconds=round(lived, 1), restart_in_seconds=delay)

    def _restart(self, name: str) -> None:
        try:
            process = self._starters[name]()
            if name == "broker":
                self._after_broker_loss()
        except ClawbackError as error:
            _log.error("cannot restart", name=name, error=str(error))
            self._due[name] = time.monotonic() + _MAX_DELAY_SECONDS
            return
        self._running[name] = process
        entry = self.stack.services.get(name) or self.stack.infrastructure[name]
        entry.pid, entry.started, entry.restarts = process.pid, process.started, entry.restarts + 1
        self.stack.write()

    def _after_broker_loss(self) -> None:
        """It kept everything in memory: topics are made anew, and services stand at offsets that no longer exist."""
        self._create_topics()
        for name in self.stack.services:
            if name in self._running:
                self._running[name].signal(signal.SIGTERM)  # `watch` starts it again

    def _port(self, name: str) -> int:
        port = self._plan.ports.get(name)
        if port is None:
            return free_port()
        check_port(name, port)
        return port

    def _log_file(self, name: str) -> Path:
        return self._home / "logs" / f"{name}.log"


def _plain(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if not value.startswith("{")}


def _exit_of(process: Process) -> str:
    try:
        # Its first thread has ended; the kernel tells the status once the others have, which a busy machine delays.
        _, status = os.waitpid(process.pid, 0)
    except ChildProcessError:
        return "unknown"
    code = os.waitstatus_to_exitcode(status)
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"status {code}"


def main() -> int:
    """Run one stack until SIGTERM or SIGINT."""
    home = Path(sys.argv[1])
    logs.configure("supervisor")
    supervisor = Supervisor(msgspec.json.decode((home / PLAN).read_bytes(), type=Plan))

    def stop(_number: int, _frame: object) -> None:
        supervisor.stopping = True

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    status = 0
    try:
        supervisor.start()
        supervisor.watch()
    except ClawbackError as error:
        supervisor.stack.phase, supervisor.stack.error, status = "failed", str(error), 1
        _log.error("stopped", error=str(error))
    finally:
        supervisor.stop()
    return status


if __name__ == "__main__":
    sys.exit(main())
