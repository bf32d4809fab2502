"""Starting an Apache Kafka says what is missing, and asks for one node that needs no other."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploy.local import kafka
from libs.errors import ConfigError


def test_one_node_is_broker_and_controller_and_takes_large_records(tmp_path: Path) -> None:
    lines = dict(line.split("=", 1) for line in kafka.properties(1111, 2222, tmp_path).splitlines())
    assert lines["process.roles"] == "broker,controller"
    assert lines["controller.quorum.voters"] == "1@127.0.0.1:2222"
    assert lines["advertised.listeners"] == "PLAINTEXT://127.0.0.1:1111"
    assert {value for name, value in lines.items() if "replication.factor" in name or "min.isr" in name} == {"1"}
    assert int(lines["message.max.bytes"]) == 8388608


def test_a_missing_distribution_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_HOME", str(tmp_path))
    assert kafka.available()
    with pytest.raises(ConfigError, match=r"no bin/kafka-storage\.sh there"):
        kafka.start(tmp_path / "data")
    monkeypatch.delenv("KAFKA_HOME")
    assert not kafka.available()


def test_a_failing_format_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    for name in ("kafka-storage.sh", "kafka-server-start.sh"):
        script = tmp_path / "bin" / name
        script.write_text("#!/bin/sh\necho 'unsupported class file version' >&2\nexit 1\n")
        script.chmod(0o755)
    monkeypatch.setenv("KAFKA_HOME", str(tmp_path))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ConfigError, match="unsupported class file version"):
        kafka.start(tmp_path / "data")
