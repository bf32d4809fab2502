"""stack.json: what runs on this machine, for the command line and for tests. Written whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from deploy.local.process import Process

FILE = "stack.json"


class Entry(msgspec.Struct, kw_only=True):
    """One running process. `url` is its HTTP address; the broker's and Redis' addresses stand in Stack itself."""

    pid: int
    started: float
    log: str
    url: str = ""
    restarts: int = 0
    last_exit: str = ""  # why it was restarted, the last time

    def process(self, name: str) -> Process:
        return Process(name, self.pid, self.started, Path(self.log))


class Stack(msgspec.Struct, kw_only=True):
    """The whole local stack. `phase`: starting | running | stopping | failed (then `error` says why)."""

    home: str
    kafka_bootstrap_servers: str = ""
    redis_url: str = ""
    kafka_idempotent_producer: bool = True
    phase: str = "starting"
    error: str = ""
    supervisor: Entry | None = None
    infrastructure: dict[str, Entry] = msgspec.field(default_factory=dict)  # broker, redis, as far as started here
    services: dict[str, Entry] = msgspec.field(default_factory=dict)

    @property
    def gateway_url(self) -> str:
        return self.services["gateway"].url if "gateway" in self.services else ""

    def write(self) -> None:
        write_private(Path(self.home) / FILE, msgspec.json.format(msgspec.json.encode(self), indent=2))


def write_private(path: Path, data: bytes) -> None:
    """Replace a file, whole or not at all, by one that only its owner can read, from its first byte on."""
    part = path.with_suffix(f".{os.getpid()}.part")
    part.unlink(missing_ok=True)
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as sink:
        sink.write(data)
    part.replace(path)


def read(home: Path) -> Stack | None:
    """The stack that was started from this home last, or None. It may have ended since."""
    try:
        return msgspec.json.decode((home / FILE).read_bytes(), type=Stack)
    except (FileNotFoundError, msgspec.DecodeError, msgspec.ValidationError):
        return None
