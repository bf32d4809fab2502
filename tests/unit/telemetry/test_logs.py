"""Every log line is one JSON object, from structlog and from the standard library alike."""

from __future__ import annotations

import json
import subprocess
import sys

PROGRAM = """
import logging
from libs.telemetry import logs
logs.configure("judge", "INFO")
logs.get_logger("unit").info("batch", turns=4, text="ёлка")
logs.get_logger("unit").debug("hidden")
logging.getLogger("aiokafka.conn").warning("connection %s lost", 7)
logging.getLogger("aiokafka.conn").info("chatter")
try:
    raise KeyError("inner")
except KeyError:
    logs.get_logger("unit").exception("failed")
"""


def test_lines_are_json_with_service_level_and_time() -> None:
    run = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert run.stdout == ""
    lines = [json.loads(line) for line in run.stderr.splitlines()]
    assert [(line["event"], line["level"], line["service"]) for line in lines] == [
        ("batch", "info", "judge"),
        ("connection 7 lost", "warning", "judge"),
        ("failed", "error", "judge"),
    ]
    assert lines[0]["turns"] == 4
    assert lines[0]["module"] == "unit"
    assert all(line["timestamp"].endswith("Z") for line in lines)
    assert "KeyError" in lines[2]["exception"]
