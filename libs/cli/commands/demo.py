"""Run the homework experiment on a local stack: complaints change the weights that answer them."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import click

from libs.cli.home import check_model, home
from libs.cli.options import Seconds, new_folder
from libs.cli.say import say


@click.command("demo", help=__doc__)
@click.option("--seed", default=0, show_default=True, help="order of questions, the student's words, sampling")
@click.option("--sessions", default=24, show_default=True, type=click.IntRange(1), help="homework sessions to hold")
@click.option("--wave", default=4, show_default=True, type=click.IntRange(1), help="sessions held at once")
@click.option("--no-tags", is_flag=True, help="the client leaves out its session tag")
@click.option("--window", type=click.IntRange(1), help="the client sends only its newest N messages")
@click.option("--compact", is_flag=True, help="the client replaces its history by a summary before it answers")
@click.option("--ttl", type=Seconds(), help="session state lives S seconds; half the answers come later")
@click.option("--output", type=click.Path(path_type=Path, file_okay=False), help="a new folder; default runs/<time>")
@click.pass_context
def command(
    ctx: click.Context,
    seed: int,
    sessions: int,
    wave: int,
    no_tags: bool,
    window: int | None,
    compact: bool,
    ttl: float | None,
    output: Path | None,
) -> None:
    from experiments.homework import report
    from experiments.homework.local import local_stack, run_interruptible
    from experiments.homework.progress import Progress
    from experiments.homework.run import DEFAULT_TTL_SECONDS, Plan, execute
    from experiments.homework.sessions import Shape

    directory = new_folder(output or Path("runs") / time.strftime("%Y%m%d-%H%M%S"), "--output")
    check_model()
    plan = Plan(
        directory=directory,
        seed=seed,
        sessions=sessions,
        wave=wave,
        shape=Shape(tagged=not no_tags, window=window, compact=compact, think_seconds=1.5 * ttl if ttl else 0.0),
        ttl_seconds=ttl or DEFAULT_TTL_SECONDS,
        scenario=f"homework-{int(time.time()):x}",
    )
    names = ("CLAWBACK_MATCHER_TTL_SECONDS", "CLAWBACK_MONITOR_SESSION_TTL_SECONDS")
    env = dict.fromkeys(names, str(ttl)) if ttl else {}
    with Progress(sessions, plan.ttl_seconds) as progress:
        try:
            with local_stack(home(), progress, env) as stack:
                summary = run_interruptible(
                    execute(
                        plan,
                        gateway_url=stack.gateway_url,
                        bootstrap=stack.kafka_bootstrap_servers,
                        progress=progress,
                    )
                )
        except KeyboardInterrupt:
            progress.console.print(f"interrupted; what was measured so far is in {directory}", markup=False)
            ctx.exit(130)
    say(report.table(summary), lines=True)
    say(f"everything is in {directory}")
    sys.stdout.flush()
