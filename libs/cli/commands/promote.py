"""Let a release serve that the gate held back."""

from __future__ import annotations

import asyncio
import time

import click

from libs.cli.say import say


@click.command("promote", help=__doc__)
@click.argument("scenario")
@click.argument("release_id")
def command(scenario: str, release_id: str) -> None:
    from libs.cli.chains import chain_of, events, send
    from libs.contracts.release_chain import promote

    event = promote(chain_of(scenario, asyncio.run(events())), release_id, time.time())
    send(event)
    say(f"{scenario}: {event.serving} is to serve ({event.reason})")
