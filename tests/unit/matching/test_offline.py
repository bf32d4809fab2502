"""The offline form: files in, files and a report out; the perturbation suite on a small corpus of our own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from libs.contracts import ExchangeClassified, TurnMatched, decode, encode
from libs.matching.__main__ import main
from tests.bench.matching.suite import SUITE, load, measure
from tests.unit.matching.talk import DIALECTS, World, called, result, said, user


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two conversations in each dialect, with tool calls, and their labels."""
    folder = tmp_path_factory.mktemp("corpus")
    w = World()
    labels: list[dict[str, Any]] = []
    for dialect in DIALECTS:
        for talk in ("A", "B"):
            items = [user(f"Hello from talk {talk}, list the {dialect} folder, please.")]
            last = None
            for turn in range(9):
                text = (
                    f"Answer 00{turn}-{talk}{dialect}: this is what I found in it.\nThe second line says {turn} {talk}."
                )
                call = called(dialect, "bash", {"command": f"ls {talk}/{turn}"}, f"c{talk}{turn}")
                reply = call if turn % 3 == 1 else [said(text)]
                name = w.exchange(items, reply, dialect=dialect, match=False)
                labels.append(
                    {
                        "exchange_id": name,
                        "kind": "main",
                        "answers": last,
                        "transcript_last": last,
                        "conversation": f"{dialect}/{talk}",
                        "thread": "main",
                    }
                )
                more = (
                    [result(dialect, f"file {turn}", f"c{talk}{turn}")]
                    if reply is call
                    else [user(f"No, {turn}. Again.")]
                )
                items, last = [*items, *reply, *more], name
    (folder / "own.traffic.jsonl").write_bytes(b"\n".join(encode(r) for r in w.records) + b"\n")
    (folder / "own.labels.jsonl").write_text("\n".join(json.dumps(x) for x in labels) + "\n")
    return folder


def test_a_log_is_matched(corpus: Path, tmp_path: Path) -> None:
    out, exchanges, report = tmp_path / "m.jsonl", tmp_path / "e.jsonl", tmp_path / "r.json"
    arguments = ["--input", str(corpus / "own.traffic.jsonl"), "--output", str(out), "--exchanges", str(exchanges)]
    code = main([*arguments, "--report", str(report), "--labels", str(corpus / "own.labels.jsonl")])
    made = json.loads(report.read_text())
    assert code == 0
    assert made["scores"] == {
        "answers": 48, "bound": 48, "correct": 48, "precision": 1.0, "recall": 1.0, "main_side": 1.0,
    }  # fmt: skip
    assert (made["exchanges"], made["classes"], made["rules"]) == (54, {"main": 54}, {"prefix": 48})
    assert made["unmatched"] == {"first_request": 6}
    assert len([decode(x, TurnMatched) for x in out.read_bytes().splitlines()]) == 48
    assert len([decode(x, ExchangeClassified) for x in exchanges.read_bytes().splitlines()]) == 54


def test_lines_that_are_no_records_are_counted_and_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "broken.jsonl"
    path.write_text('{"a": 1}\n\nnot json\n')
    assert main(["--input", str(path)]) == 1
    said_ = capsys.readouterr()
    assert json.loads(said_.out)["unreadable"] == 2
    assert "broken.jsonl:1: left out" in said_.err and "broken.jsonl:3" in said_.err


def test_a_missing_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--input", str(tmp_path / "none.jsonl")]) == 2
    assert "none.jsonl: No such file" in capsys.readouterr().err


def test_a_ttl_that_cuts_off_answers_is_reported(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--input", str(corpus / "own.traffic.jsonl"), "--ttl-seconds", "0.4"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["ttl_cuts_off_answers"] == 48
    assert made["gap_seconds"]["p50"] > 0.4


@pytest.mark.parametrize("name", SUITE)
def test_perturbations(corpus: Path, name: str) -> None:
    got = measure(SUITE[name](load(sorted(corpus.glob("*.traffic.jsonl")))))
    assert got["precision"] >= 0.995, got["wrong"]
    assert got["recall"] >= 0.95, got["missed"]
    assert got["answers"] > 20
