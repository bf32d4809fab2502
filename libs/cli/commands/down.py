"""Stop what `clawback up` started."""

from __future__ import annotations

import click

from libs.cli.home import home
from libs.cli.say import say


@click.command("down", help=__doc__)
def command() -> None:
    from deploy.local import stack

    ran = stack.down(home(), on_event=lambda text: say(f"  {text}"))
    if not ran:
        say(f"nothing runs from {home()}")
