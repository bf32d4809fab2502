"""The monitor: reads every topic, serves rates, metrics and the Inspector. `python -m services.monitor`."""

from __future__ import annotations

import sys

from libs.errors import ConfigError
from libs.streams.config import load
from services.monitor.config import MonitorSettings


def main() -> int:
    """Parse the settings before Faust is imported, then run until SIGTERM. Returns the exit status."""
    try:
        settings = load(MonitorSettings)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    from services.monitor.run import run  # heavy

    return run(settings)
