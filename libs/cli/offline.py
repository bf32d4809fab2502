"""The offline forms: a component library runs alone on files through its own `main(argv)`; these only pass on to it."""

from __future__ import annotations

import importlib
import sys

import click


def offline_command(name: str, module: str, doc: str | None) -> click.Command:
    """A command that hands every argument, `--help` included, to `main` of a component library."""

    @click.command(
        name,
        help=doc,
        add_help_option=False,
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    )
    @click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
    @click.pass_context
    def command(ctx: click.Context, arguments: tuple[str, ...]) -> None:
        sys.argv = [f"clawback {name}", *arguments]
        try:
            code = importlib.import_module(module).main(list(arguments))
        except SystemExit as done:
            code = done.code
        ctx.exit(code if isinstance(code, int) else (1 if code else 0))

    return command
