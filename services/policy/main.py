"""`python -m services.policy`: the built-in inference server."""

from __future__ import annotations

import os

from libs.streams.config import load, load_or_exit
from services.policy.config import PolicySettings


def main() -> int:
    """Exit status: 0 after a signal, 1 when the engine failed, 2 when a setting is wrong."""
    # Threads that spin while they wait take the cores from other processes; torch reads this when it is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    settings = load_or_exit("policy", lambda: load(PolicySettings))
    from libs.streams.service import run

    if settings.policy_engine != "builtin":
        from services.policy.external.serve import serve_external

        return run("policy", settings, lambda stop: serve_external(settings, stop))
    from services.policy.server import serve

    return run("policy", settings, lambda stop: serve(settings, stop))
