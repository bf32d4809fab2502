"""README.md stays true: its commands parse, its targets and paths exist, its code compiles. e2e runs them."""

from __future__ import annotations

import re
import shlex
import subprocess

import click
import pytest

from libs.cli.__main__ import cli
from tests.readme_commands import ROOT, TEXT, blocks, commands

COMMANDS = commands()
CLAWBACK = [c[1:] for c in COMMANDS if c[0].endswith("/clawback")]
MAKE = [c[1:] for c in COMMANDS if c[0] == "make"]
PARSED_CLI = [
    *CLAWBACK,
    *[["demo", *shlex.split(a.partition("=")[2])] for m in MAKE for a in m if a.startswith("ARGS")],
]


def test_every_command_is_one_that_is_checked() -> None:
    assert COMMANDS and len(COMMANDS) == len(CLAWBACK) + len(MAKE)


@pytest.mark.parametrize("words", MAKE, ids=" ".join)
def test_make_targets_exist(words: list[str]) -> None:
    run = subprocess.run(["make", "-n", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize("words", PARSED_CLI, ids=" ".join)
def test_clawback_commands_parse(words: list[str]) -> None:
    with click.Context(cli) as parent:
        command = cli.get_command(parent, words[0])
        assert command is not None, f"no such subcommand: {words[0]}"
        command.make_context(words[0], list(words[1:]), parent=parent)


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`clawback ([a-z-]+)", TEXT))))
def test_subcommands_named_in_the_text_exist(name: str) -> None:
    with click.Context(cli) as parent:
        assert cli.get_command(parent, name) is not None


@pytest.mark.parametrize("path", re.findall(r"^\| `([^`]+)` \|", TEXT, re.MULTILINE))
def test_paths_of_the_file_map_exist(path: str) -> None:
    assert (ROOT / path).exists()


@pytest.mark.parametrize("code", blocks("python"))
def test_python_compiles(code: str) -> None:
    compile(code, "README.md", "exec")
