"""What ails the whole system, whatever the scenario."""

from __future__ import annotations

from collections.abc import Iterator

from libs.cli.doctor.findings import Finding, System


def no_traffic() -> Finding:
    return Finding(
        "no_traffic",
        "stops",
        "",
        "No exchange has passed the gateway.",
        "0 exchanges",
        "Point the client's base URL at the gateway; `clawback status --json` shows the first exchange when it comes.",
    )


def of_system(s: System) -> Iterator[Finding]:
    """Every cause that lies in no scenario, the broker first."""
    cut_off = [service for service, failing in s.down.items() if "kafka" in failing]
    broker_away = len(cut_off) > 1  # one service alone may have a fault of its own
    yield from _broker(s, cut_off, broker_away)
    yield from _services(s, broker_away)
    yield from _lag(s)
    yield from _judge(s)
    yield from _dead_letters(s)


def _broker(s: System, cut_off: list[str], away: bool) -> Iterator[Finding]:
    spooled = s.total("clawback_gateway_spool_records")
    if away:
        waiting = f"; {spooled:.0f} exchanges wait in the gateway's spool" if spooled else ""
        yield Finding(
            "broker_away",
            "stops",
            "",
            "The Kafka broker does not answer.",
            f"{', '.join(cut_off)} cannot reach it: {s.down[cut_off[0]]['kafka']}{waiting}",
            "Bring the broker back. Nothing is lost: the gateway keeps new exchanges on disk, and every service goes "
            "on where it stopped.",
        )
    elif spooled:
        yield Finding(
            "spool",
            "stops",
            "",
            "The broker does not take the gateway's records.",
            f"{spooled:.0f} exchanges wait in the spool",
            "Bring the broker back; the spool then empties by itself.",
        )


def _services(s: System, broker_away: bool) -> Iterator[Finding]:
    for service, failing in s.down.items():
        if broker_away and "kafka" in failing and not set(failing) - {"kafka", "assigned"}:
            continue  # said above
        yield Finding(
            "service_down",
            "stops" if service != "policy" else "costs",
            "",
            f"The {service} is not ready.",
            "; ".join(f"{check}: {why}" for check, why in failing.items()),
            "See its log (`clawback status` names it). One that hangs: `kill -9` its pid (stack.json), and the local "
            "stack or Kubernetes starts it again. Waiting records are kept.",
        )


def _lag(s: System) -> Iterator[Finding]:
    for group, topics in s.status.get("lag", {}).items():
        behind = sum(topics.values())
        if behind > 500:
            yield Finding(
                "lag",
                "costs",
                "",
                f"{group} is behind.",
                f"{behind} records not committed on {', '.join(topics)}",
                "Start it or add replicas, up to the topic's partitions (runbook ClawbackLag).",
            )


def _judge(s: System) -> Iterator[Finding]:
    if "judge" not in s.down and s.metrics and s.total("clawback_judge_up") == 0:
        yield Finding(
            "judge_down",
            "stops",
            "",
            "The judge's model server does not answer.",
            f"{s.total('clawback_judge_abstentions_total'):.0f} votes abstained so far",
            "Bring the server at CLAWBACK_JUDGE_PRM_URL back, or set CLAWBACK_JUDGE_KIND=rules for the time being.",
        )


def _dead_letters(s: System) -> Iterator[Finding]:
    letters = sum(s.status.get("dead_letters", {}).values())
    if letters:
        shown = ", ".join(f"{label} {n}" for label, n in s.status["dead_letters"].items())
        yield Finding(
            "dead_letters",
            "costs",
            "",
            "Records were set aside.",
            shown,
            "`clawback dead-letters list` says why; mend the cause, then `clawback dead-letters retry --all`.",
        )
