"""Run the matcher, judge or batcher again over the log, beside the live one, with other settings if you like."""

from __future__ import annotations

import re
import time

import click

from libs.cli.options import Seconds, pairs
from libs.cli.say import say

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


@click.command("replay", help=__doc__)
@click.argument("stage", type=click.Choice(["matcher", "judge", "batcher"]))
@click.option("--since", metavar="AGE", help="only records younger than this: 90s, 30m, 12h, 7d; all unless given")
@click.option("--name", help="of this replay: its outputs go to <topic>.<name>; replay-<time> unless given")
@click.option("--into-live", is_flag=True, help="write to the live topics: what is there already is recognised by id")
@click.option("--group", help="consumer group; clawback-<stage>-<name> unless given")
@click.option("--redis-url", help="an empty Redis database for its state; number 15 of the live one unless given")
@click.option("--env", "env", multiple=True, metavar="NAME=VALUE", help="a setting that differs from the live service")
@click.option("--timeout", "timeout_seconds", type=Seconds(), default=3600.0, show_default=True, help="seconds")
def command(
    stage: str,
    since: str | None,
    name: str | None,
    into_live: bool,
    group: str | None,
    redis_url: str | None,
    env: tuple[str, ...],
    timeout_seconds: float,
) -> None:
    from libs.cli.connect import settings
    from libs.cli.home import home
    from libs.cli.replaying import OWN, replay, run_to_its_end, side_database

    used = settings()
    name = name or f"replay-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}"
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,100}", name):
        raise click.BadParameter("--name: letters, digits, dot, dash and underscore only")
    own = pairs(env, "--env")
    if taken := sorted(OWN & set(own)):
        raise click.BadParameter(f"--env {taken[0]}: a replay sets it itself, so that it stays beside the live stage")
    log = home() / "logs" / f"{stage}-{name}.log"
    outcome = run_to_its_end(
        replay(
            used,
            stage,
            group=group or f"clawback-{stage}-{name}",
            suffix="" if into_live else f".{name}",
            since=None if since is None else max(0.0, time.time() - _seconds(since)),
            redis_url=redis_url or side_database(used.redis_url),
            env=own,
            log=log,
            local=not used.kafka_idempotent_producer,
            timeout_seconds=timeout_seconds,
        )
    )
    say(f"{stage} read {outcome.read} records again")
    if outcome.forgotten:
        say(f"  {outcome.forgotten:6}  left out: forgotten")
    for topic, written in outcome.written.items():
        say(f"  {written:6}  {topic}")
    if not into_live:
        say(f"look at them with `clawback tap {next(iter(outcome.written))}`")


def _seconds(age: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", age)
    if not match:
        raise click.BadParameter(f"--since {age}: give a number and s, m, h or d, such as 30m")
    return float(match[1]) * _UNITS[match[2]]
