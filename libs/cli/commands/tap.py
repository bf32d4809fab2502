"""Show the records of a topic, decoded and filtered: what is there, or what comes (--follow)."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import click

from libs.contracts.terminal import plain, plain_json

_LONG = 160  # characters of one value on the one-line form


@click.command("tap", help=__doc__)
@click.argument("topic")
@click.option("--scenario", help="only records of this scenario")
@click.option("--session", help="only records of this session")
@click.option("--turn", help="only records that name this turn or exchange")
@click.option("--jsonl", is_flag=True, help="one whole JSON object a line, as on the topic")
@click.option("--follow", is_flag=True, help="go on with what comes, until Ctrl-C")
@click.option(
    "--from-beginning/--from-end",
    "from_beginning",
    default=None,
    help="where to begin; from the beginning unless --follow",
)
def command(
    topic: str,
    scenario: str | None,
    session: str | None,
    turn: str | None,
    jsonl: bool,
    follow: bool,
    from_beginning: bool | None,
) -> None:
    beginning = not follow if from_beginning is None else from_beginning
    try:
        asyncio.run(_run(topic, scenario, session, turn, jsonl, follow, beginning))
    except KeyboardInterrupt:
        raise click.exceptions.Exit(130) from None


async def _run(
    topic: str, scenario: str | None, session: str | None, turn: str | None, jsonl: bool, follow: bool, beginning: bool
) -> None:
    from libs.cli.connect import settings
    from libs.streams.tap import Filter, tap

    found = tap(
        settings(),
        [topic],
        start="beginning" if beginning else "end",
        follow=follow,
        where=Filter(scenario=scenario, session=session, turn=turn),
    )
    async for tapped in found:
        line = one_json(tapped) if jsonl else one_line(tapped)
        sys.stdout.write(line + "\n")
        sys.stdout.flush()


def one_json(tapped: Any) -> str:
    """The record's JSON in one line, control characters escaped as JSON does: it decodes to the same record."""
    return plain_json(tapped.source.value.decode("utf-8", "replace")).replace("\n", " ")


def one_line(tapped: Any) -> str:
    """`partition:offset  field=value ...`, without the bulky fields; or the error for a bad record."""
    import msgspec

    where = f"{tapped.source.partition}:{tapped.source.offset}"
    if tapped.record is None:
        return plain(f"{where}  BAD {' '.join(tapped.error.split())}")
    bulky = {"request", "response", "capture", "earlier", "samples", "value"}
    fields: dict[str, Any] = msgspec.to_builtins(tapped.record)
    shown = []
    for name, value in fields.items():
        if name in bulky:
            if isinstance(value, list):
                shown.append(f"{name}=[{len(value)}]")
            continue
        text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
        text = " ".join(text.split())
        shown.append(f"{name}={text if len(text) <= _LONG else text[:_LONG] + '...'}")
    return plain(f"{where}  " + " ".join(shown))
