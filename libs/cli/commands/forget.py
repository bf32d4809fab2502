"""Remove a session's or a tenant's data from Redis and write a tombstone, which the monitor honours."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Literal, cast

import click

_NOTE = (
    "The topics keep their records until their retention ends (deploy/topics/topics.yaml); what was trained before "
    "stays in the releases: `clawback rollback` takes a release back."
)


@click.command("forget", help=__doc__)
@click.option("--session", help="session id as the records name it (`clawback tap exchanges.classified`)")
@click.option("--tenant", help="tenant as the records name it")
@click.option("--yes", is_flag=True, help="do not ask")
def command(session: str | None, tenant: str | None, yes: bool) -> None:
    if (session is None) == (tenant is None):
        raise click.UsageError("give either --session or --tenant")
    kind: Literal["session", "tenant"] = "session" if session is not None else "tenant"
    value = cast(str, session if session is not None else tenant)
    if not yes:
        click.confirm(f"forget {kind} {value}?", abort=True)
    removed = asyncio.run(_forget(kind, value))
    click.echo(f"removed {removed} keys from Redis and wrote the tombstone. {_NOTE}")


async def _forget(kind: Literal["session", "tenant"], value: str) -> int:
    from libs.cli.connect import settings
    from libs.cli.forgetting import forget_session, forget_tenant, forget_votes, places
    from libs.cli.produce import produce
    from libs.contracts import Tombstone, encode
    from libs.contracts.tombstones import TOPIC
    from libs.streams.sessions import ScriptStore
    from libs.streams.types import Output

    used = settings()
    found = await places(used, kind, value)
    if not found:
        raise click.ClickException(f"no record names {kind} {value}; ids are compared whole, as the records have them")
    store: Any = ScriptStore(used.redis_url)
    try:
        async with store.errors():
            forget = forget_session if kind == "session" else forget_tenant
            removed = await forget(store.redis, value, found) + await forget_votes(store.redis)
    finally:
        await store.redis.aclose()
    tombstone = Tombstone(kind=kind, value=value, at=time.time(), redis_keys=removed)
    await produce(used, [Output(used.input_topic(TOPIC), value, encode(tombstone))])
    return removed
