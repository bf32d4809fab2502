"""What keeps traffic from becoming signal, in plain words: pure rules over the figures of a running system."""

from __future__ import annotations

from libs.cli.doctor.findings import Finding, Severity, System
from libs.cli.doctor.scenario import of_scenario
from libs.cli.doctor.system import no_traffic, of_system


def diagnose(system: System) -> list[Finding]:
    """Everything found, what stops all signal first."""
    found = list(of_system(system))
    for scenario in system.status["scenarios"]:
        found += of_scenario(system, scenario)
    if not system.status["exchanges_held"]:
        found.append(no_traffic())
    order: dict[Severity, int] = {"stops": 0, "costs": 1, "note": 2}
    return sorted(found, key=lambda f: order[f.severity])
