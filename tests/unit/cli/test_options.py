"""Options of the command line: a value that cannot be meant is refused, with the option's name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from libs.cli.commands import demo, replay, up
from libs.feedback.offline import main as judge
from libs.learning.__main__ import main as train
from libs.matching.__main__ import main as match


@pytest.mark.parametrize(
    ("command", "arguments", "named"),
    [
        (up, ["--port", "foo=1"], "--port foo"),
        (up, ["--port", "gateway=99999"], "--port gateway=99999"),
        (up, ["--port", "gateway=0"], "--port gateway=0"),
        (up, ["--port", "gateway=8123", "--port", "monitor=8123"], "8123"),
        (up, ["--port", "gateway=²"], "--port gateway"),
        (up, ["--env", "X"], "--env takes NAME=VALUE"),
        (up, ["--wait", "nan"], "--wait"),
        (replay, ["matcher", "--env", "X"], "--env takes NAME=VALUE"),
        (replay, ["matcher", "--env", "=1"], "--env takes NAME=VALUE"),
        (replay, ["matcher", "--env", "CLAWBACK_REDIS_URL=redis://live/0"], "CLAWBACK_REDIS_URL"),
        (replay, ["matcher", "--timeout", "-1"], "--timeout"),
        (demo, ["--ttl", "nan"], "--ttl"),
    ],
)
def test_an_option_that_cannot_be_meant(
    command: Any, arguments: list[str], named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLAWBACK_HOME", str(tmp_path))
    (tmp_path / "models" / "smollm2-135m-instruct").mkdir(parents=True)
    (tmp_path / "models" / "smollm2-135m-instruct" / "config.json").write_text("{}")
    result = CliRunner().invoke(command.command, arguments)
    assert result.exit_code != 0
    assert named in result.output + str(result.exception)
    assert not (tmp_path / "plan.json").exists(), "nothing was started"


def test_a_demo_does_not_write_into_a_folder_with_something_in_it(tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_text("mine")
    result = CliRunner().invoke(demo.command, ["--output", str(tmp_path)])
    assert result.exit_code == 2 and "--output" in result.output and "summary.json" in result.output
    assert [p.name for p in tmp_path.iterdir()] == ["summary.json"]


@pytest.mark.parametrize(
    ("main", "flag", "value"),
    [
        *((match, "--ttl-seconds", v) for v in ("-1", "0", "nan", "inf", "soon")),
        *((judge, f, v) for f, v in (("--concurrency", "0"), ("--window", "-1"), ("--votes", "0"), ("--votes", "1.5"))),
        *((judge, f, "nan") for f in ("--call-timeout", "--turn-timeout", "--temperature")),
        *((train, f, "0") for f in ("--lora-rank", "--lora-alpha", "--batch-size", "--pack-tokens", "--learning-rate")),
        *((train, f, "nan") for f in ("--learning-rate", "--w-rl", "--kl-coef", "--clamp")),
    ],
)
def test_a_number_that_cannot_be_meant(
    main: Any, flag: str, value: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"")
    more = ["--output", str(tmp_path / "out"), *(["--model", str(tmp_path / "m")] if main is train else [])]
    with pytest.raises(SystemExit) as stopped:
        main([str(path), *more, flag, value])
    assert stopped.value.code == 2
    assert f"argument {flag}: '{value}': give a " in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
