"""One file a subcommand, found by name and imported only when it is used."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from libs.cli import __main__ as entry
from libs.errors import ConfigError

FILES = sorted(p for p in (Path(entry.__file__).parent / "commands").glob("*.py") if not p.stem.startswith("_"))


def test_help_lists_every_file_and_imports_none() -> None:
    code = (
        "import sys; from libs.cli.__main__ import cli\n"
        "try: cli.main(['--help'], standalone_mode=False)\n"
        "finally: loaded=[m for m in sys.modules if m.startswith('libs.cli.commands.')]; assert not loaded, loaded\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    for path in FILES:
        assert path.stem.replace("_", "-") in run.stdout


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_every_file_is_a_command_with_a_one_line_summary(path: Path) -> None:
    summary = entry._summary(path)
    assert summary and len(summary) <= 120
    with click.Context(entry.cli) as ctx:
        command = entry.cli.get_command(ctx, path.stem.replace("_", "-"))
    assert isinstance(command, click.Command)


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_commands_import_torch_only_when_they_run(path: Path) -> None:
    names = {
        alias.name.split(".")[0]
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.Import)
        for alias in node.names
    }
    assert not names & {"torch", "transformers", "matplotlib"}


def test_an_unknown_command_is_refused() -> None:
    assert CliRunner().invoke(entry.cli, ["no-such-thing"]).exit_code == 2


def test_an_error_of_ours_is_one_line_with_the_fix(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(**_: object) -> None:
        raise ConfigError("CLAWBACK_X is wrong; set it to 1")

    monkeypatch.setattr(entry.cli, "main", fail)
    assert entry.main() == 1
    assert capsys.readouterr().err == "error: CLAWBACK_X is wrong; set it to 1\n"
