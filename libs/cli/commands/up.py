"""Start broker, Redis and every service on this machine, and wait until all are ready."""

from __future__ import annotations

import click

from libs.cli.home import check_model, home


def _pairs(values: tuple[str, ...], option: str) -> dict[str, str]:
    pairs = dict(value.partition("=")[::2] for value in values)
    wrong = [name for name, value in pairs.items() if not name or not value]
    if wrong:
        raise click.BadParameter(f"{option} takes NAME=VALUE, got {wrong[0]!r}")
    return pairs


@click.command("up", help=__doc__)
@click.option("--service", "services", multiple=True, help="start only this service (repeat it); all unless given")
@click.option("--port", "ports", multiple=True, metavar="NAME=PORT", help="fix a port: gateway=8080, broker=9092, ...")
@click.option("--env", "env", multiple=True, metavar="NAME=VALUE", help="a setting for every service")
@click.option("--wait", "wait_seconds", default=180.0, show_default=True, help="seconds until all must be ready")
def command(services: tuple[str, ...], ports: tuple[str, ...], env: tuple[str, ...], wait_seconds: float) -> None:
    from deploy.local import stack

    fixed = {}
    for name, value in _pairs(ports, "--port").items():
        if not value.isdigit():
            raise click.BadParameter(f"--port {name}={value}: a port is a number")
        fixed[name] = int(value)
    if not services or {"policy", "trainer"} & set(services):
        check_model()
    up = stack.up(
        home(),
        services=services or stack.NAMES,
        ports=fixed,
        env=_pairs(env, "--env"),
        wait_seconds=wait_seconds,
        on_event=lambda text: click.echo(f"  {text}"),
    )
    if up.gateway_url:
        click.echo(f"gateway {up.gateway_url}/v1")
    if "monitor" in up.services:
        click.echo(f"monitor {up.services['monitor'].url}")
    click.echo("`clawback status` shows what becomes signal, `clawback down` stops it all")
