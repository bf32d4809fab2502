"""The offline forms against files as people have them: each fault is named by file and line, the rest goes on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from libs.contracts import TrafficRaw, TurnJudged, TurnMatched, decode, encode
from libs.errors import ContractError
from libs.feedback.evaluation import read_rows
from libs.feedback.offline import main as judge
from libs.learning.__main__ import main as train
from libs.learning.samples import Limits, fault
from libs.matching.__main__ import main as match
from tests.tiny_model import batch, sample, tokenizer, write_model

EXAMPLES = Path(__file__).parents[3] / "libs/contracts/examples"
DEEP = b'{"request": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"


def stored(topic: str, name: str) -> bytes:
    return msgspec.json.format((EXAMPLES / topic / "v1" / f"{name}.json").read_bytes(), indent=-1)


@pytest.mark.parametrize("kind", [TrafficRaw, TurnMatched, TurnJudged])
def test_a_record_nested_too_deeply_is_a_contract_error(kind: Any) -> None:
    with pytest.raises(ContractError, match="nested too deeply"):
        decode(DEEP, kind)


def test_match_reads_marks_and_line_ends_and_names_each_fault(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = stored("traffic.raw", "chat-completions")
    path, lines = tmp_path / "in.jsonl", tmp_path / "new" / "folder" / "e.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + good + b"\r\n" + DEEP + b"\r\n" + good[:50])
    assert match(["--input", str(path), "--exchanges", str(lines)]) == 0
    said = capsys.readouterr()
    assert "in.jsonl:2: left out" in said.err and "in.jsonl:3: left out" in said.err
    assert json.loads(said.out)["unreadable"] == 2 and len(lines.read_bytes().splitlines()) == 1


@pytest.mark.parametrize("broken", [b'{"exchange_id": "a"}', b"[", b"[1]", b'{"exchange_id":[],"kind":"","answers":0}'])
def test_match_names_a_broken_label(tmp_path: Path, capsys: pytest.CaptureFixture[str], broken: bytes) -> None:
    path, labels = tmp_path / "in.jsonl", tmp_path / "labels.jsonl"
    path.write_bytes(stored("traffic.raw", "chat-completions"))
    labels.write_bytes(b"\n" + broken)
    assert match(["--input", str(path), "--labels", str(labels)]) == 2
    assert "labels.jsonl:2: " in capsys.readouterr().err


def test_no_form_overwrites_what_it_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    raw, turns = tmp_path / "raw.jsonl", tmp_path / "turns.jsonl"
    raw.write_bytes(stored("traffic.raw", "chat-completions"))
    turns.write_bytes(stored("turns.matched", "correction"))
    before = raw.read_bytes(), turns.read_bytes()
    out = tmp_path / "out.jsonl"
    for arguments in (["--output", str(raw)], ["--report", str(raw)], ["--output", str(out), "--exchanges", str(out)]):
        assert match(["--input", str(raw), *arguments]) == 2
        assert "name another output" in capsys.readouterr().err
    for arguments in (["--output", str(turns)], ["--output", str(out), "--record", str(turns)]):
        assert judge(["--input", str(turns), *arguments]) == 2
        assert "name another output" in capsys.readouterr().err
    assert (raw.read_bytes(), turns.read_bytes()) == before


def test_no_form_overwrites_what_it_reads_under_another_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    raw, turns, out = tmp_path / "raw.jsonl", tmp_path / "turns.jsonl", tmp_path / "out.jsonl"
    raw.write_bytes(stored("traffic.raw", "chat-completions"))
    turns.write_bytes(stored("turns.matched", "correction"))
    for path in (raw, turns):
        path.with_suffix(".hard").hardlink_to(path)
        path.with_suffix(".soft").symlink_to(path)
    before = raw.read_bytes(), turns.read_bytes()
    out.write_text("earlier")
    (tmp_path / "out.hard").hardlink_to(out)
    two = ["--output", str(out), "--exchanges", str(tmp_path / "out.hard")]
    for arguments in (*(["--output", str(raw.with_suffix(x))] for x in (".hard", ".soft")), two):
        assert match(["--input", str(raw), *arguments]) == 2
        assert "name another output" in capsys.readouterr().err
    for name in (".hard", ".soft"):
        assert judge(["--input", str(turns), "--output", str(turns.with_suffix(name))]) == 2
        assert "name another output" in capsys.readouterr().err
    assert (raw.read_bytes(), turns.read_bytes(), out.read_text()) == (*before, "earlier")


def test_match_fails_when_no_line_is_a_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(b'{"a": 1}\n{"\x1b[2Jb": 2}\n')
    assert match([str(path)]) == 1
    said = capsys.readouterr()
    assert "none of the 2 lines is a traffic.raw record" in said.err and "\x1b" not in said.err


FULL = Path("/dev/full")


@pytest.mark.skipif(not FULL.exists(), reason="no /dev/full on this system")
def test_a_full_disk_is_named(tmp_path: Path) -> None:
    raw = tmp_path / "raw.jsonl"
    raw.write_bytes(stored("traffic.raw", "chat-completions"))
    command = [sys.executable, "-m", "libs.matching", str(raw)]
    for more in (["--exchanges", str(FULL), "--report", str(tmp_path / "r")], ["--report", str(FULL)], []):
        with FULL.open("wb") as full:
            ended = subprocess.run([*command, *more], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
        assert ended.returncode == 2
        assert "No space left on device" in ended.stderr and "None" not in ended.stderr
        assert "Traceback" not in ended.stderr and "Exception" not in ended.stderr


def test_a_reader_that_goes_away_is_no_error(tmp_path: Path) -> None:
    raw = tmp_path / "raw.jsonl"
    raw.write_bytes(stored("traffic.raw", "chat-completions"))
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as gone:
        ended = subprocess.run(
            [sys.executable, "-m", "libs.matching", str(raw)],
            stdout=gone,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_missing_input_leaves_the_output_of_an_earlier_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.jsonl"
    out.write_text("earlier\n")
    assert match(["--input", str(tmp_path / "none.jsonl"), "--output", str(out)]) == 2
    assert "none.jsonl: No such file" in capsys.readouterr().err
    assert out.read_text() == "earlier\n"


def test_judge_leaves_out_repeats_and_broken_lines_and_judges_the_rest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = stored("turns.matched", "correction")
    again = msgspec.structs.replace(decode(good, TurnMatched), answered_by="retry", repeat_of="first")
    path, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    path.write_bytes(b"\n".join([b"\xef\xbb\xbf" + good, encode(again), good, good[:99], DEEP]))
    assert judge(["--input", str(path), "--output", str(out), "--allow-uncaptured"]) == 1
    said = capsys.readouterr()
    report = json.loads(said.out)
    assert (report["turns"], report["repeats"], report["unreadable"]) == (1, 2, 2)
    assert "in.jsonl:4: left out" in said.err and "in.jsonl:5: left out" in said.err
    made = [decode(x, TurnJudged) for x in out.read_bytes().splitlines()]
    assert len({j.feedback_id for j in made}) == len(made) >= 1 and "retry" not in {j.answered_by for j in made}


def test_labelled_rows_nested_too_deeply_are_named(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'\n{"x": ' + DEEP + b"}")
    with pytest.raises(ContractError, match=r"rows\.jsonl:2: "):
        read_rows(path)


def test_train_goes_on_over_what_it_leaves_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, path, out = write_model(tmp_path / "model"), tmp_path / "in.jsonl", tmp_path / "out"
    other = msgspec.structs.replace(sample("other"), request={"input": "x"})
    lines = [b"\xef\xbb\xbf" + encode(batch("b1", sample("f1"), sample("f1"), other)), b'{"half', DEEP]
    path.write_bytes(b"\r\n".join([*lines, encode(batch("b2", sample("f1"), sample("f2")))]))
    assert train([str(path), "--model", str(model), "--out", str(out)]) == 0
    said = capsys.readouterr()
    steps = [json.loads(x) for x in said.out.splitlines()]
    assert [(s["batch_id"], s["applied"], s["dropped"]) for s in steps] == [
        ("b1", True, {"other": "contract"}),
        ("b2", True, {}),
    ]
    assert "in.jsonl:2: " in said.err and "in.jsonl:3: " in said.err and "feedback f1 has been read before" in said.err
    assert json.loads(next(out.rglob("step.json")).read_text())["trained"] == ["f1", "f2"]


def test_train_without_anything_to_train_on_writes_no_release(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, path, out = write_model(tmp_path / "model"), tmp_path / "in.jsonl", tmp_path / "out"
    path.write_bytes(b"\n")
    assert train([str(path), "--model", str(model), "--out", str(out)]) == 1
    assert "nothing to train on" in capsys.readouterr().err and not out.exists()


def test_train_says_when_every_sample_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, path, out = write_model(tmp_path / "model"), tmp_path / "in.jsonl", tmp_path / "out"
    path.write_bytes(encode(batch("b1", msgspec.structs.replace(sample("f1"), request={"input": "x"}))))
    assert train([str(path), "--model", str(model), "--out", str(out)]) == 1
    assert "every sample was left out" in capsys.readouterr().err and not out.exists()
    path.write_bytes(encode(batch("b1", msgspec.structs.replace(sample("f1"), reward=1.0, hints=[]))))
    assert train([str(path), "--model", str(model), "--out", str(out)]) == 0
    assert "no step was taken (nothing_rejected 1)" in capsys.readouterr().err


@pytest.mark.parametrize("device", ["cuda:99", "nonsense", "meta"])
def test_train_names_a_device_that_is_not_there(
    tmp_path: Path, device: str, capsys: pytest.CaptureFixture[str]
) -> None:
    model, path, out = write_model(tmp_path / "model"), tmp_path / "in.jsonl", tmp_path / "out"
    path.write_bytes(encode(batch("b1", sample("f1"))))
    assert train([str(path), "--model", str(model), "--output", str(out), "--device", device]) == 1
    assert f"--device {device} cannot be used" in capsys.readouterr().err and not out.exists()


@pytest.mark.parametrize("change", [{"weight": 1e300}, {"reward": -1e308}, {"weight": 0.0}, {"reward": float("nan")}])
def test_a_number_that_float32_cannot_hold_drops_the_sample(change: dict[str, float]) -> None:
    from libs.learning.offline import train_sample

    made = train_sample(msgspec.structs.replace(sample("f1"), **change), tokenizer())
    assert fault(made, Limits(512, 261)) == "not_finite"
