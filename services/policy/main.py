"""`python -m services.policy`: the built-in inference server."""

from __future__ import annotations

import os
import sys

from libs.errors import ClawbackError
from libs.streams.config import load
from services.policy.config import PolicySettings


def main() -> int:
    """Exit status: 0 after a signal, 1 when a setting is wrong or the engine failed."""
    # Threads that spin while they wait take the cores from other processes; torch reads this when it is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    try:
        settings = load(PolicySettings)
    except ClawbackError as error:
        print(f"policy: {error}", file=sys.stderr)
        return 1
    from libs.streams.service import run

    if settings.policy_engine != "builtin":
        from services.policy.external.serve import serve_external

        return run("policy", settings, lambda stop: serve_external(settings, stop))
    from services.policy.server import serve

    return run("policy", settings, lambda stop: serve(settings, stop))
