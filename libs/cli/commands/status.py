"""Is my traffic becoming signal? Match rate and signal rate per scenario, then what stands in the way."""

from __future__ import annotations

import time
from typing import Any

import click

from libs.cli.say import say_json
from libs.contracts.terminal import plain

_LEGEND = (
    "signal: share of turns that a step has used. usable: judged and fit to train;\n"
    "a usable turn waits for its batch (full, or old enough), then for the step."
)


@click.command("status", help=__doc__)
@click.option("--json", "as_json", is_flag=True, help="the monitor's document as it is")
@click.option("--scenario", help="only this scenario")
@click.option("--window", type=click.Choice(["5m", "1h", "all"]), default="1h", show_default=True)
@click.option("--watch", is_flag=True, help="renew the screen every two seconds until Ctrl-C")
def command(as_json: bool, scenario: str | None, window: str, watch: bool) -> None:
    from libs.cli.connect import get_json, service_url

    url = f"{service_url('monitor')}/api/status"
    if as_json:
        document = get_json(url)
        if scenario is not None:
            document["scenarios"] = {k: v for k, v in document["scenarios"].items() if k == scenario}
        say_json(document)
        return
    from rich.console import Console
    from rich.live import Live

    console = Console()
    if not watch:
        console.print(screen(get_json(url), window=window, scenario=scenario), *_not_ready(), sep="\n")
        return
    with Live(console=console, auto_refresh=False, screen=False) as live:
        while True:
            live.update(screen(get_json(url), window=window, scenario=scenario), refresh=True)
            time.sleep(2.0)


def _plain(found: Any) -> Any:
    """The document with every name and text in it safe to print: they come from records."""
    if isinstance(found, dict):
        return {plain(name): _plain(value) for name, value in found.items()}
    if isinstance(found, list):
        return [_plain(value) for value in found]
    return plain(found) if isinstance(found, str) else found


def _not_ready() -> list[Any]:
    """A line for each process of the local stack that is not ready."""
    from rich.text import Text

    from deploy.local.stack import status
    from libs.cli.home import home

    return [
        Text(plain(f"{'not ready':24}{h.name}: {h.detail.strip()[:120]} (log {h.entry.log})"), style="red")
        for h in status(home())
        if not h.ready
    ]


def screen(document: dict[str, Any], *, window: str, scenario: str | None) -> Any:
    """The rich renderable for one status document."""
    from rich.console import Group
    from rich.text import Text

    document, scenario = _plain(document), scenario and plain(scenario)
    names = [n for n in document["scenarios"] if scenario in (None, n)]
    total = document["total"][window] if scenario is None else _pick(document, scenario, window)
    parts: list[Any] = [
        Text.assemble(
            ("Is traffic becoming signal? ", "bold"),
            "match rate ",
            (percent(total.get("match_rate")), _colour(total.get("match_rate"))),
            ", signal rate ",
            (percent(total.get("signal_rate")), _colour(total.get("signal_rate"), 0.05)),
            (f"  ({total.get('turns', 0)} turns, {window})", "dim"),
        ),
        _funnel(document, names, window),
        Text(_LEGEND, style="dim"),
        *_reasons(total),
        *_health(document),
    ]  # fmt: skip
    return Group(*parts)


def _pick(document: dict[str, Any], scenario: str, window: str) -> dict[str, Any]:
    found = document["scenarios"].get(scenario)
    if found is None:
        raise click.ClickException(f"no traffic of scenario {scenario!r}; seen: {', '.join(document['scenarios'])}")
    windows: dict[str, Any] = found["windows"][window]
    return windows


def _funnel(document: dict[str, Any], names: list[str], window: str) -> Any:
    """One row a scenario; it fits 80 columns. `usable`: judged turns that a step could use."""
    from rich.table import Table

    stages = {"turns": "turns", "matched": "matched", "judged": "judged", "signal": "usable"}
    stages |= {"batched": "batched", "trained": "trained"}
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1, 0, 0))
    table.add_column("scenario", overflow="fold")
    for head in ("match", "signal", *stages.values()):
        table.add_column(head, justify="right", no_wrap=True, min_width=len(head))
    table.add_column("serving", overflow="fold")
    for name in names:
        figures = document["scenarios"][name]["windows"][window]
        release = document["scenarios"][name]["release"] or {}
        rates = (percent(figures["match_rate"]), percent(figures["signal_rate"]))
        counts = (str(figures[stage]) for stage in stages)
        table.add_row(name, *rates, *counts, release.get("serving", "base"))
    return table


def _reasons(figures: dict[str, Any]) -> list[Any]:
    """One line per kind of loss that has figures."""
    from rich.text import Text

    lines = []
    for key, title in (
        ("classes", "exchanges by class"),
        ("rules", "matched by rule"),
        ("unmatched", "unmatched, why"),
        ("no_signal", "judged, no signal, why"),
        ("verdicts", "verdicts"),
        ("abstentions", "votes abstained, why"),
        ("drops", "left out of a step, why"),
    ):
        if figures.get(key):
            found = sorted(figures[key].items(), key=lambda item: -item[1])
            lines.append(Text(f"{title:24}" + "  ".join(f"{label} {n}" for label, n in found)))
    if figures.get("turns"):
        turns = figures["turns"]
        shares = "  ".join(f"{k} {percent(figures[k] / turns)}" for k in ("tagged", "hinted", "captured"))
        lines.append(Text(f"{'share of turns':24}{shares}"))
    return lines


def _health(document: dict[str, Any]) -> list[Any]:
    from rich.text import Text

    lines = []
    lags = {group: sum(topics.values()) for group, topics in document.get("lag", {}).items()}
    if lags:
        shown = "  ".join(f"{group.removeprefix('clawback-')} {n}" for group, n in lags.items())
        lines.append(Text(f"{'records behind':24}{shown}"))
    for name, scenario in document["scenarios"].items():
        release = scenario["release"]
        if release and release["events"]:
            events = "  ".join(f"{event} {n}" for event, n in release["events"].items())
            lines.append(Text(f"{'steps of ' + name[:14]:24}{release['step']} steps  {events}"))
    if document.get("dead_letters"):
        shown = "  ".join(f"{label} {n}" for label, n in document["dead_letters"].items())
        lines.append(Text(f"{'dead letters':24}{shown}", style="red"))
    gap = document["gap_seconds"]
    if gap["count"]:
        ttl = document["session_ttl_seconds"]
        lines.append(Text(f"{'reply to answer':24}p50 {gap['p50']:.1f} s  p99 {gap['p99']:.1f} s  (TTL {ttl:.0f} s)"))
    return lines


def percent(value: float | None) -> str:
    """A rate for people; a dash where there was nothing to divide by."""
    return "-" if value is None else f"{100 * value:.1f} %"


def _colour(value: float | None, low: float = 0.5) -> str:
    return "bold dim" if value is None else "bold red" if value < low else "bold green"
