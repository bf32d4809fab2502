"""Start broker, Redis and every service on this machine, and wait until all are ready."""

from __future__ import annotations

import click

from libs.cli.home import check_model, home
from libs.cli.options import Seconds, pairs
from libs.cli.say import say


@click.command("up", help=__doc__)
@click.option("--service", "services", multiple=True, help="start only this service (repeat it); all unless given")
@click.option("--port", "ports", multiple=True, metavar="NAME=PORT", help="fix a port: gateway=8080, broker=9092, ...")
@click.option("--env", "env", multiple=True, metavar="NAME=VALUE", help="a setting for every service")
@click.option(
    "--wait", "wait_seconds", type=Seconds(), default=180.0, show_default=True, help="seconds until all must be ready"
)
def command(services: tuple[str, ...], ports: tuple[str, ...], env: tuple[str, ...], wait_seconds: float) -> None:
    from deploy.local import stack

    fixed = {}
    for name, value in pairs(ports, "--port").items():
        if not (value.isascii() and value.isdigit()):
            raise click.BadParameter(f"--port {name}={value}: a port is a number")
        fixed[name] = int(value)
    if not services or {"policy", "trainer"} & set(services):
        check_model()
    up = stack.up(
        home(),
        services=services or stack.NAMES,
        ports=fixed,
        env=pairs(env, "--env"),
        wait_seconds=wait_seconds,
        on_event=lambda text: say(f"  {text}"),
    )
    if up.gateway_url:
        say(f"gateway {up.gateway_url}/v1")
    if "monitor" in up.services:
        say(f"monitor {up.services['monitor'].url}")
    say("`clawback status` shows what becomes signal, `clawback down` stops it all")
