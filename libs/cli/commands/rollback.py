"""Let an earlier release of a scenario serve again; training goes on from it."""

from __future__ import annotations

import asyncio
import time

import click

from libs.cli.say import say


@click.command("rollback", help=__doc__)
@click.argument("scenario")
@click.argument("release_id", required=False)
def command(scenario: str, release_id: str | None) -> None:
    from libs.cli.chains import chain_of, events, send
    from libs.contracts.release_chain import rollback

    event = rollback(chain_of(scenario, asyncio.run(events())), release_id, time.time())
    send(event)
    say(f"{scenario}: {event.serving} is to serve ({event.reason})")
