"""`python -m services.gateway`: the process that clients point their base URL at."""

from __future__ import annotations

from libs.streams.config import load, load_or_exit
from services.gateway.config import GatewaySettings


def main() -> int:
    """Exit status: 0 after a signal, 1 when the process must not go on, 2 when a setting is wrong."""
    settings = load_or_exit("gateway", lambda: load(GatewaySettings))
    from libs.streams.service import collect_rarely, run
    from services.gateway.server import serve

    collect_rarely()
    return run("gateway", settings, lambda stop: serve(settings, stop))
