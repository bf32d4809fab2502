"""From runs/chaos.json to a page: `python -m tests.bench.chaos.report > docs/chaos.md`."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deploy.local.stack import ROOT

ENDS = {
    "trained_once": "bound, judged and in one optimizer step",
    "dropped_counted": "bound, then dropped with a reason",
    "unmatched_counted": "not bound, counted with a reason",
    "unanswered": "answered by nobody before the run ended",
    "dead_lettered": "dead-lettered with a reason",
    "lost": "without an end",
    "trained_twice": "in two optimizer steps",
    "misbound": "bound to a reply that they do not answer",
}


def table(head: tuple[str, str], rows: Mapping[str, object]) -> list[str]:
    return [f"| {head[0]} | {head[1]} |", "|---|---|", *(f"| {name} | {n} |" for name, n in rows.items()), ""]


def page(found: dict[str, Any]) -> str:
    """The whole page as Markdown."""
    kills = ", ".join(f"{name} {n}" for name, n in found["kills_by_service"].items())
    ends = {name.replace(":", ": ").strip(": ").replace("_", " "): n for name, n in sorted(found["ends"].items())}
    ready = ", ".join(name for name, up in found["ready_afterwards"].items() if up)
    lines = [
        "# What faults do to the stream",
        "",
        *_paragraph(f"""
            `make chaos` (seed {found["seed"]}, {found["wall_seconds"]:.0f} s): a whole local stack under steady load.
            Services were killed {found["kills"]} times with SIGKILL at random moments ({kills}), beside the faults
            below. Every exchange that a client saw through to its end counts as accepted; what became of it is
            read from the topics by code that shares nothing with the services. This page:
            `python -m tests.bench.chaos.report`."""),
        *table(("accepted exchanges", str(found["accepted"])), {about: found[name] for name, about in ENDS.items()}),
        *table(("end", "exchanges"), ends),
        *table(("fault", "times"), {name.replace("_", " "): n for name, n in found["faults"].items()}),
        *_paragraph(f"""
            Of the poison records {found["poison_must_be_dead_letters"]} can be read by no service;
            {found["dead_letters"]} records became dead letters. Ready again afterwards: {ready}."""),
        *_paragraph("""
            The model is a random one of a few thousand parameters, so that two cores serve and train it through
            hundreds of restarts. Requests that failed while the gateway or the policy was down were not
            accepted and are not counted."""),
    ]
    return "\n".join(lines).rstrip() + "\n"


def _paragraph(text: str) -> list[str]:
    return [*textwrap.wrap(" ".join(text.split()), 120, break_on_hyphens=False), ""]


if __name__ == "__main__":
    source = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "runs" / "chaos.json"
    print(page(json.loads(source.read_text())), end="")
