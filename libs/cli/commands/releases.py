"""The release log: what each batch ended in, which release serves, and why others do not."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime

import click

from libs.cli.say import say, say_json


@click.command("releases", help=__doc__)
@click.option("--scenario", help="only this scenario")
@click.option("--json", "as_json", is_flag=True, help="the events as JSON")
def command(scenario: str | None, as_json: bool) -> None:
    import msgspec

    from libs.cli.chains import chain_of, events

    log = [event for event in asyncio.run(events()) if scenario in (None, event.scenario)]
    if as_json:
        say_json(msgspec.to_builtins(log))
        return
    if not log:
        say("no releases yet: every scenario serves the base model")
        return
    for event in log:
        when = datetime.fromtimestamp(event.created_at, UTC).strftime("%m-%d %H:%M:%S")
        loss = f"  loss {event.metrics['loss']:.4f}" if "loss" in event.metrics else ""
        used = f"  {len(event.trained)} turns" if event.trained else ""
        why = f"  {event.reason}" if event.reason else ""
        say(f"{when}  {event.scenario}  {event.event:11} {event.release_id}  step {event.step}{used}{loss}{why}")
        if event.event == "held" and (figures := gate_figures(event.metrics)):
            say(f"{'':16}{figures}")
    for name in sorted({event.scenario for event in log}):
        chain = chain_of(name, log)
        held = [r.release_id for r in chain.releases.values() if r.status == "held"]
        say(f"{name}: serving {chain.serving}" + (f", held back: {', '.join(held)}" if held else ""))


def gate_figures(metrics: Mapping[str, float]) -> str:
    """What the gate saw: the candidate's figures on its probes, with the serving release's in brackets."""
    own = {n.removeprefix("gate_"): v for n, v in metrics.items() if n.startswith("gate_")}
    shown = [n for n in own if not n.startswith("serving_")]
    return "  ".join(
        f"{name} {own[name]:.2f}" + (f" ({own[f'serving_{name}']:.2f})" if f"serving_{name}" in own else "")
        for name in shown
    )
