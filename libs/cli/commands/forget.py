"""Remove a session's or a tenant's data from Redis and write a tombstone, which every stage honours."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import click

from libs.cli.say import say

_NOTE = (
    "The topics keep their records until their retention ends (deploy/topics/topics.yaml), and no stage uses them "
    "again; what was trained before stays in the releases: `clawback rollback` takes a release back."
)


@click.command("forget", help=__doc__)
@click.option("--session", help="session id as the records name it (`clawback tap exchanges.classified`)")
@click.option("--tenant", help="tenant as the records name it; with --session: whose session it is")
@click.option("--yes", is_flag=True, help="do not ask")
def command(session: str | None, tenant: str | None, yes: bool) -> None:
    if session is None and tenant is None:
        raise click.UsageError("give --session or --tenant")
    what = f"tenant {tenant}" if session is None else f"session {session}"
    if not yes:
        click.confirm(f"forget {what}?", abort=True)
    removed = asyncio.run(_forget(session, tenant))
    say(f"removed {removed} keys from Redis and wrote the tombstone. {_NOTE}")


async def _forget(session: str | None, tenant: str | None) -> int:
    from libs.cli.connect import settings
    from libs.cli.forgetting import forget_session, forget_tenant, forget_votes, places
    from libs.cli.produce import produce
    from libs.contracts import Tombstone, encode
    from libs.contracts.tombstones import TOPIC
    from libs.streams.sessions import ScriptStore
    from libs.streams.types import Output

    used = settings()
    found, exchanges = await places(used, session, tenant)
    owners = sorted({owner for owner, _ in found})
    if not owners:
        raise click.ClickException("no record names it; ids are compared whole, as the records have them")
    if len(owners) > 1:
        raise click.ClickException(f"several tenants have a session of that id; add --tenant: {', '.join(owners)}")
    store: Any = ScriptStore(used.redis_url)
    try:
        async with store.errors():
            removed = await forget_votes(store.redis)
            if session is None:
                removed += await forget_tenant(store.redis, found)
            else:
                removed += await forget_session(store.redis, session, found)
    finally:
        await store.redis.aclose()
    now = time.time()
    if session is None:
        stone = Tombstone(kind="tenant", value=owners[0], at=now, redis_keys=removed)
    else:
        stone = Tombstone(
            kind="session", value=session, tenant=owners[0], at=now, redis_keys=removed, exchange_ids=exchanges
        )
    await produce(used, [Output(used.input_topic(TOPIC), stone.value, encode(stone))])
    return removed
