"""`python -m services.gateway`: the process that clients point their base URL at."""

from __future__ import annotations

import sys

from libs.errors import ClawbackError
from libs.streams.config import load
from services.gateway.config import GatewaySettings


def main() -> int:
    """Exit status: 0 after a signal, 1 when a setting is wrong or the process must not go on."""
    try:
        settings = load(GatewaySettings)
    except ClawbackError as error:
        print(f"gateway: {error}", file=sys.stderr)
        return 1
    from libs.streams.service import collect_rarely, run
    from services.gateway.server import serve

    collect_rarely()
    return run("gateway", settings, lambda stop: serve(settings, stop))
