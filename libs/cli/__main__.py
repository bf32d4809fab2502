"""The `clawback` command: one file a subcommand under libs/cli/commands, imported only when it is called.

A file `dead_letters.py` is the subcommand `dead-letters`; it defines a click command named `command`. The first line of
its docstring is the short help, read from the source so that `clawback --help` imports none of them.
"""

from __future__ import annotations

import ast
import importlib
import sys
from pathlib import Path
from typing import cast

import click

from libs.cli.say import say
from libs.contracts.terminal import os_fault, plain, reader_gone
from libs.errors import ClawbackError

_COMMANDS = Path(__file__).parent / "commands"


class LazyGroup(click.Group):
    """Finds subcommands by file name and imports one when it is run or its own help is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(p.stem.replace("_", "-") for p in _COMMANDS.glob("*.py") if not p.stem.startswith("_"))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        module = importlib.import_module(f"libs.cli.commands.{cmd_name.replace('-', '_')}")
        return cast(click.Command, module.command)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [(name, _summary(_COMMANDS / f"{name.replace('-', '_')}.py")) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def _summary(path: Path) -> str:
    doc = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return doc.strip().split("\n")[0]


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
def cli() -> None:
    """Turns the corrections in live LLM-agent traffic into weight updates of the model that serves them."""


def main() -> int:
    """Entry point. An error of ours is one line that says what to do, never a traceback."""
    try:
        return int(cli.main(standalone_mode=False) or 0)
    except click.exceptions.Exit as done:
        return done.exit_code
    except click.ClickException as error:
        error.message = plain(error.message)  # it may quote a record
        error.show()
        return error.exit_code
    except click.Abort:
        say("interrupted", err=True)
        return 130
    except ClawbackError as error:
        say(f"error: {error}", err=True, lines=True)
        return 1
    except BrokenPipeError:  # `clawback tap ... | head`
        return reader_gone()
    except OSError as error:  # a full disk
        say(f"error: {os_fault(error)}", err=True)
        return 1


if __name__ == "__main__":
    sys.exit(main())
