"""What a newcomer meets: the four offline forms take their files alike and explain every flag."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

FORMS = {
    "match": "libs.matching.__main__",
    "judge": "libs.feedback.__main__",
    "judge-eval": "libs.feedback.evaluate",
    "train": "libs.learning.__main__",
}


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest) -> tuple[str, Callable[[list[str]], int]]:
    return request.param, importlib.import_module(FORMS[request.param]).main


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_names_the_command_and_explains_every_flag(
    form: tuple[str, Any], flag: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name, main = form
    shown: list[argparse.ArgumentParser] = []
    format_help = argparse.ArgumentParser.format_help

    def keep(self: argparse.ArgumentParser) -> str:
        shown.append(self)
        return format_help(self)

    monkeypatch.setattr(argparse.ArgumentParser, "format_help", keep)
    with pytest.raises(SystemExit) as done:
        main([flag])
    assert done.value.code == 0
    said = capsys.readouterr().out
    assert said.startswith(f"usage: clawback {name} FILE...") and "python -m" not in said.splitlines()[0]
    assert "default: None" not in said and "default: []" not in said
    (parser,) = shown
    assert [action.dest for action in parser._actions if not action.help] == []


@pytest.mark.parametrize("style", [[], ["--input"]], ids=["FILE", "--input"])
def test_files_are_taken_by_position_and_by_input(
    form: tuple[str, Any], style: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name, main = form
    more = {"judge": ["--output", "o"], "train": ["--model", str(tmp_path), "--output", "o"]}.get(name, [])
    assert main([*style, str(tmp_path / "absent.jsonl"), *more]) in (1, 2)
    assert "absent.jsonl" in capsys.readouterr().err, "it was read as a file: what is wrong is that it is not there"


def test_no_file_is_refused_with_the_usage(form: tuple[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    name, main = form
    more = {"judge": ["--output", "o"], "train": ["--model", "m", "--output", "o"]}.get(name, [])
    with pytest.raises(SystemExit) as done:
        main(more)
    assert done.value.code == 2
    assert f"clawback {name}: error: name at least one FILE" in capsys.readouterr().err


def test_both_ways_at_once_read_both(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import json

    from libs.matching.__main__ import main

    one, other = tmp_path / "one.jsonl", tmp_path / "other.jsonl"
    one.write_text('{"broken": 1}\n')
    other.write_text('{"broken": 2}\n{"broken": 3}\n')
    assert main([str(one), "--input", str(other)]) == 1, "not one line is a record"
    assert json.loads(capsys.readouterr().out)["unreadable"] == 3
