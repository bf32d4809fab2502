"""The figures that `/api/status`, `clawback status` and `/metrics` show, built from the ledger. Pure but for gauges."""

from __future__ import annotations

from typing import Any

import msgspec

from libs.telemetry import metrics
from libs.telemetry.ledger import Ledger
from libs.telemetry.rates import Counts

WINDOWS: dict[str, float | None] = {"5m": 300.0, "1h": 3600.0, "all": None}
STAGES = ("exchanges", "turns", "answerable", "matched", "judged", "signal", "batched", "trained", "waiting", "expired")


def status(ledger: Ledger, *, ttl_seconds: float, now: float) -> dict[str, Any]:
    """One JSON document: the rates of every scenario and window, and what lies behind them."""
    return {
        "now": now,
        "newest_record": ledger.newest,
        "session_ttl_seconds": ttl_seconds,
        "exchanges_held": len(ledger.turns),
        "total": {name: _window(ledger, None, window, ttl_seconds, now) for name, window in WINDOWS.items()},
        "scenarios": {
            scenario: {
                "release": msgspec.to_builtins(ledger.scenarios.get(scenario)),
                "windows": {
                    name: _window(ledger, scenario, window, ttl_seconds, now) for name, window in WINDOWS.items()
                },
            }
            for scenario in ledger.scenario_names()
        },
        "gap_seconds": _gaps(ledger),
    }


def _window(ledger: Ledger, scenario: str | None, window: float | None, ttl: float, now: float) -> dict[str, Any]:
    counts = ledger.counts(scenario, ttl_seconds=ttl, window_seconds=window, now=now)
    return {"match_rate": counts.match_rate, "signal_rate": counts.signal_rate, **msgspec.to_builtins(counts)}


def _gaps(ledger: Ledger) -> dict[str, float | int | None]:
    """Seconds between a reply and its answer: of answers in time, and the longest of those that came after the TTL."""
    known = [t for t in ledger.turns.values() if t.gap_seconds is not None]
    gaps = sorted(t.gap_seconds for t in known if t.answers is not None and t.gap_seconds is not None)
    late = max((t.gap_seconds for t in known if t.answers is None and t.gap_seconds is not None), default=None)
    if not gaps:
        return {"count": 0, "p50": None, "p99": None, "max": None, "late_max": late}
    at = {"p50": gaps[len(gaps) // 2], "p99": gaps[int(len(gaps) * 0.99)], "max": gaps[-1]}
    return {"count": len(gaps), **at, "late_max": late}


def refresh_gauges(ledger: Ledger, *, ttl_seconds: float, now: float) -> None:
    """Set the monitor's gauges to the figures of this moment; labels that are gone disappear."""
    for gauge in (metrics.MATCH_RATE, metrics.SIGNAL_RATE, metrics.WINDOW_TURNS, metrics.WINDOW_UNMATCHED):
        gauge.clear()
    for gauge in (
        metrics.WINDOW_DIALECT,
        metrics.NEWEST_HELD,
        metrics.WINDOW_SHARE,
        metrics.RELEASE_NUMBER,
        metrics.OPTIMIZER_STEPS,
        metrics.RELEASE_EVENTS,
    ):
        gauge.clear()
    metrics.SESSION_TTL.set(ttl_seconds)
    metrics.MONITOR_EXCHANGES.set(len(ledger.turns))
    for scenario in ledger.scenario_names():
        for name, window in WINDOWS.items():
            _set_window(
                scenario, name, ledger.counts(scenario, ttl_seconds=ttl_seconds, window_seconds=window, now=now)
            )
        state = ledger.scenarios.get(scenario)
        if state:
            metrics.RELEASE_NUMBER.labels(scenario).set(state.number)
            metrics.OPTIMIZER_STEPS.labels(scenario).set(state.step)
            metrics.NEWEST_HELD.labels(scenario).set(state.last_event == "held")
            for event, n in state.events.items():
                metrics.RELEASE_EVENTS.labels(scenario, event).set(n)


def _set_window(scenario: str, window: str, counts: Counts) -> None:
    if counts.match_rate is not None:
        metrics.MATCH_RATE.labels(scenario, window).set(counts.match_rate)
    if counts.signal_rate is not None:
        metrics.SIGNAL_RATE.labels(scenario, window).set(counts.signal_rate)
    for stage in STAGES:
        metrics.WINDOW_TURNS.labels(scenario, window, stage).set(getattr(counts, stage))
    for reason, n in counts.unmatched.items():
        metrics.WINDOW_UNMATCHED.labels(scenario, window, reason).set(n)
    for dialect, n in counts.dialects.items():
        metrics.WINDOW_DIALECT.labels(scenario, window, dialect).set(n)
    if counts.turns:
        for kind in ("tagged", "hinted", "captured"):
            metrics.WINDOW_SHARE.labels(scenario, window, kind).set(getattr(counts, kind) / counts.turns)
