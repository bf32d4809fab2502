"""What comes from a topic cannot steer the terminal of who looks at it."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner
from rich.console import Console

from libs.cli.commands import releases, status
from libs.cli.commands.status import screen
from libs.cli.commands.tap import one_json, one_line
from libs.cli.say import say
from libs.contracts import PolicyRelease, encode
from libs.streams.tap import decoded
from libs.streams.types import StreamRecord
from libs.telemetry.ledger import Ledger
from services.monitor.status import status as status_of
from tests.judged import EXAMPLES
from tests.monitor_records import Talk

COMMANDS = Path(releases.__file__).parent
NASTY = "hw\x1b[2J\x9b31m\x7f\u202e\rforged"


def steers(text: str) -> set[str]:
    return {c for c in text if (ord(c) < 32 and c != "\n") or 0x7F <= ord(c) < 0xA0 or c == "\u202e"}


@pytest.mark.parametrize("path", sorted(COMMANDS.glob("*.py")), ids=lambda p: p.stem)
def test_every_command_prints_by_say(path: Path) -> None:
    """`click.echo` and `print` would let a record's characters through."""
    calls = [n.func for n in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(n, ast.Call)]
    assert not {ast.unparse(f) for f in calls} & {"click.echo", "click.secho", "print"}


@pytest.mark.parametrize("topic", ["traffic.raw", "exchanges.classified", "turns.matched", "policy.releases"])
def test_a_tapped_record(topic: str) -> None:
    example: dict[str, Any] = json.loads(next((EXAMPLES / topic / "v1").glob("*.json")).read_bytes())
    example["scenario"] = NASTY
    value = json.dumps(example, ensure_ascii=False, indent=1).replace("\n", "\r\n").encode()
    for record in (value, value[:-3], NASTY.encode(), b"\xff\x1b[2J"):
        tapped = decoded(StreamRecord(topic, 0, 0, None, record))
        assert (tapped.record is not None) == (record == value)
        for line in (one_json(tapped), one_line(tapped)):
            assert "\n" not in line and not steers(line.replace("\n", ""))
    assert json.loads(one_json(decoded(StreamRecord(topic, 0, 0, None, value)))) == example


def test_the_release_log(monkeypatch: pytest.MonkeyPatch) -> None:
    path = next((EXAMPLES / "policy.releases" / "v1").glob("*.json"))
    event = msgspec.json.decode(path.read_bytes(), type=PolicyRelease)
    event = msgspec.structs.replace(event, scenario=NASTY + "\nline", reason=NASTY)

    async def events() -> list[PolicyRelease]:
        return [msgspec.json.decode(encode(event), type=PolicyRelease)]

    monkeypatch.setattr("libs.cli.chains.events", events)
    told = CliRunner().invoke(releases.command, []).output
    assert r"hw\x1b[2J" in told and not steers(told) and len(told.splitlines()) == 2
    listed = CliRunner().invoke(releases.command, ["--json"]).output
    assert json.loads(listed)[0]["scenario"] == event.scenario and not steers(listed)


def test_the_status_screen_and_document(monkeypatch: pytest.MonkeyPatch) -> None:
    ledger, talk = Ledger(), Talk("s", ["Explain tides.", "No lists."], 1.7e9)
    for record in (talk.raw(0), talk.classified(0)):
        ledger.observe(msgspec.structs.replace(record, scenario=NASTY))
    document = status_of(ledger, ttl_seconds=60.0, now=1.7e9 + 9) | {"lag": {}, "dead_letters": {NASTY: 1}}
    console = Console(width=80, record=True, force_terminal=False)
    with console.capture() as capture:
        console.print(screen(document, window="all", scenario=None))
    assert r"\x1b[2J" in capture.get() and not steers(capture.get())
    monkeypatch.setattr("libs.cli.connect.service_url", lambda _service: "http://monitor")
    monkeypatch.setattr("libs.cli.connect.get_json", lambda _url: document)
    told = CliRunner().invoke(status.command, ["--json"]).output
    assert NASTY in json.loads(told)["scenarios"] and not steers(told)


def test_a_line_stays_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    say("a\nb")
    say("a\nb", lines=True)
    assert capsys.readouterr().out == "a\\nb\na\nb\n"
