"""An Apache Kafka of this machine's own, where its jars and Java are there: one KRaft node, for the integration suite.

KAFKA_HOME names the unpacked distribution (bin/kafka-storage.sh, bin/kafka-server-start.sh).
"""

from __future__ import annotations

import asyncio
import base64
import os
import shutil
import subprocess
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from deploy.local.broker import answers
from deploy.local.process import Process, free_port, spawn
from libs.errors import ConfigError


def available() -> bool:
    """Whether KAFKA_HOME is set; `start` then says what else is missing."""
    return bool(os.environ.get("KAFKA_HOME"))


def properties(port: int, controller_port: int, data: Path) -> str:
    """server.properties of one node that is broker and controller. Every replication factor is 1."""
    lines = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        "inter.broker.listener.name": "PLAINTEXT",
        "log.dirs": str(data / "logs"),
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "group.initial.rebalance.delay.ms": "0",
        "auto.create.topics.enable": "false",
        "message.max.bytes": str(8 * 1024 * 1024),
    }
    return "".join(f"{name}={value}\n" for name, value in lines.items())


def start(data: Path, *, wait_seconds: float = 90.0) -> tuple[Process, str]:
    """Format a fresh log directory and start the node; returns process and bootstrap address. Raises ConfigError."""
    home = Path(os.environ.get("KAFKA_HOME", ""))
    storage, server = home / "bin" / "kafka-storage.sh", home / "bin" / "kafka-server-start.sh"
    if not os.environ.get("KAFKA_HOME") or not storage.exists() or not server.exists():
        raise ConfigError(f"KAFKA_HOME={home}: no bin/kafka-storage.sh there; unpack Apache Kafka and name its folder")
    if shutil.which("java") is None and not os.environ.get("JAVA_HOME"):
        raise ConfigError("Apache Kafka needs Java 17: install a JRE or set JAVA_HOME")
    port = free_port()
    data.mkdir(parents=True, exist_ok=True)
    config = data / "server.properties"
    config.write_text(properties(port, free_port(), data))
    cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    formatted = subprocess.run(
        [str(storage), "format", "--cluster-id", cluster, "--config", str(config)],
        capture_output=True,
        text=True,
        check=False,
    )
    if formatted.returncode:
        raise ConfigError(f"kafka-storage.sh format failed: {(formatted.stderr or formatted.stdout)[-1000:]}")
    env = dict(os.environ) | {"LOG_DIR": str(data), "KAFKA_HEAP_OPTS": "-Xmx512m -Xms256m"}
    process = spawn("kafka", [str(server), str(config)], data / "kafka.log", env)
    bootstrap = f"127.0.0.1:{port}"
    with ThreadPoolExecutor(1) as pool:
        up = pool.submit(lambda: asyncio.run(answers(process, bootstrap, wait_seconds))).result()
    if not up:
        process.stop(5.0)
        raise ConfigError(f"Kafka does not answer on {bootstrap}; its log {process.log} ends:\n{process.tail()}")
    return process, bootstrap
