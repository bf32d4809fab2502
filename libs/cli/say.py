"""What the command line prints: nothing that comes from a record, a log or a file may steer the terminal."""

from __future__ import annotations

from typing import Any

import click

from libs.contracts.terminal import as_json, plain


def say(text: str, *, err: bool = False, lines: bool = False) -> None:
    """Print one line for people, control characters spelt out; with `lines` a text of several."""
    click.echo(plain(text if lines else text.replace("\n", "\\n")), err=err)


def say_json(value: Any) -> None:
    """Print a value as indented JSON; it decodes to the same value."""
    click.echo(as_json(value))
