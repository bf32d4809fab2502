"""The status screen says what its words mean: a usable turn is not yet signal."""

from __future__ import annotations

from typing import Any

from rich.console import Console

from libs.cli.commands.status import screen
from libs.telemetry.ledger import Ledger
from services.monitor.status import status
from tests.monitor_records import Talk

T0 = 1_700_000_000.0


def shown(document: dict[str, Any]) -> str:
    console = Console(width=80, record=True, force_terminal=False)
    with console.capture() as capture:
        console.print(screen(document, window="all", scenario=None))
    return capture.get()


def test_a_usable_turn_that_waits_for_its_batch_is_explained() -> None:
    ledger, talk = Ledger(), Talk("s", ["Explain tides.", "No lists.", "Thanks."], T0)
    for record in (
        talk.raw(0),
        talk.raw(1),
        talk.classified(0),
        talk.classified(1),
        talk.matched(0),
        talk.judged(0, -1),
    ):
        ledger.observe(record)
    text = shown(status(ledger, ttl_seconds=60.0, now=T0 + 30) | {"lag": {}, "dead_letters": {}})
    row = next(line for line in text.splitlines() if line.startswith("homework")).split()
    head = next(line for line in text.splitlines() if line.startswith("scenario")).split()
    figures = dict(zip(head, [w for w in row if w != "%"], strict=True))
    assert (figures["signal"], figures["usable"], figures["trained"]) == ("0.0", "1", "0")
    legend = [line for line in text.splitlines() if "usable" in line and "scenario" not in line]
    assert any(line.startswith("signal:") and "a step has used" in line for line in legend)
    assert any("waits for its batch" in line for line in legend), "each line fits 80 columns unbroken"
