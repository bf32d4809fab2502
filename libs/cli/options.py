"""Values of options that several commands take, checked where they are read."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import click


class Seconds(click.ParamType):
    """A finite time above 0."""

    name = "seconds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            seconds = float(value)
        except ValueError:
            seconds = math.nan
        if not (math.isfinite(seconds) and seconds > 0):
            self.fail(f"{value!r}: give a number of seconds above 0", param, ctx)
        return seconds


def pairs(values: tuple[str, ...], option: str) -> dict[str, str]:
    """NAME=VALUE options as a mapping. Raises BadParameter that shows the one that is none."""
    found: dict[str, str] = {}
    for value in values:
        name, equals, rest = value.partition("=")
        if not (name and equals and rest):
            raise click.BadParameter(f"{option} takes NAME=VALUE, got {value!r}")
        found[name] = rest
    return found


def new_folder(path: Path, option: str) -> Path:
    """A folder that is not there yet or is empty. Raises BadParameter: what lies in it would be overwritten."""
    try:
        held = next(path.iterdir(), None) if path.exists() else None
    except OSError as error:
        raise click.BadParameter(f"{option} {path}: {error.strerror}; name another folder") from error
    if held is not None:
        raise click.BadParameter(
            f"{option} {path} holds {held.name} already, and a run would mix with it or overwrite it; name a new folder"
        )
    return path
