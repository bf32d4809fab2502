"""Say in plain words what keeps traffic from becoming signal, with the figure and the fix for each cause."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from libs.cli.say import say, say_json

if TYPE_CHECKING:
    from libs.cli.doctor.findings import Finding, System

SERVICES = ("gateway", "matcher", "judge", "batcher", "trainer", "policy")


@click.command("doctor", help=__doc__)
@click.option("--window", type=click.Choice(["5m", "1h", "all"]), default="1h", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="the findings as JSON")
def command(window: str, as_json: bool) -> None:
    from libs.cli.doctor.diagnosis import diagnose

    system = examine(window)
    findings = diagnose(system)
    if as_json:
        say_json([asdict(f) for f in findings])
    else:
        say(tell(system, findings), lines=True)
    if any(f.severity == "stops" for f in findings):
        raise click.exceptions.Exit(1)


def examine(window: str) -> System:
    """Ask every service that is known. Raises ConfigError, RetryError when the monitor itself cannot be asked."""
    from libs.cli.connect import failing_checks, get_json, get_text, service_url
    from libs.cli.doctor.findings import System
    from libs.errors import ConfigError, RetryError

    status = get_json(f"{service_url('monitor')}/api/status")
    down: dict[str, dict[str, str]] = {}
    metrics: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
    for service in SERVICES:
        try:
            url = service_url(service)
        except ConfigError:
            continue  # not part of this installation, or not known here
        try:
            if failing := failing_checks(url):
                down[service] = failing
            _collect(metrics, get_text(f"{url}/metrics"), service)
        except RetryError as error:
            down[service] = {"answers": str(error)}
    return System(
        status=status,
        window=window,
        down=down,
        metrics=metrics,
        batch_size=int(_setting("CLAWBACK_BATCHER_BATCH_SIZE", "4")),
        batch_max_age_seconds=float(_setting("CLAWBACK_BATCHER_MAX_AGE_SECONDS", "60")),
    )


def _setting(name: str, default: str) -> str:
    """A service's setting: from the environment, or from what the local stack was started with."""
    if name in os.environ:
        return os.environ[name]
    from libs.cli.home import home

    try:
        plan: dict[str, Any] = json.loads((home() / "plan.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return default
    found = {**plan.get("env", {}), **plan.get("service_env", {}).get("batcher", {})}
    return str(found.get(name, default))


def _collect(metrics: dict[tuple[str, frozenset[tuple[str, str]]], float], text: str, service: str) -> None:
    from prometheus_client.parser import text_string_to_metric_families

    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name.startswith("clawback_"):
                labels = frozenset({*sample.labels.items(), ("from", service)})
                metrics[(sample.name, labels)] = sample.value


def tell(system: System, findings: list[Finding]) -> str:
    """The findings as a page, the rates first."""
    total = system.status["total"][system.window]
    rates = "  ".join(
        f"{name.replace('_', ' ')} {'-' if total[name] is None else format(100 * total[name], '.1f') + ' %'}"
        for name in ("match_rate", "signal_rate")
    )
    lines = [f"{rates}  ({total['turns']} main turns, window {system.window})", ""]
    marks = {"stops": "STOPS ALL SIGNAL", "costs": "costs signal", "note": "note"}
    for finding in findings:
        where = f"{finding.scenario}: " if finding.scenario else ""
        lines += [
            f"{marks[finding.severity]}  {where}{finding.says}",
            f"    seen: {finding.figure}",
            f"    fix:  {finding.fix}",
            "",
        ]
    if not findings:
        lines.append("nothing found that keeps traffic from becoming signal")
    return "\n".join(lines).rstrip()
