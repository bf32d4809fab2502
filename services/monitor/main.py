"""The monitor: reads every topic, serves rates, metrics and the Inspector. `python -m services.monitor`."""

from __future__ import annotations

from libs.streams.config import load, load_or_exit
from services.monitor.config import MonitorSettings


def main() -> int:
    """Parse the settings before Faust is imported, then run until SIGTERM. Returns the exit status."""
    settings = load_or_exit("monitor", lambda: load(MonitorSettings))
    from services.monitor.run import run  # heavy

    return run(settings)
