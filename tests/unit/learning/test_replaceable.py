"""Writing a release removes nothing but an earlier release."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest

from libs.contracts import encode
from libs.errors import ConfigError
from libs.learning.__main__ import main as train
from libs.learning.checkpoint import StepRecord, check_replaceable, read_record, write_atomically
from tests.tiny_model import batch, sample, write_model


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `model`, `in.jsonl` and the release `first`."""
    root = tmp_path_factory.mktemp("made")
    model, path = write_model(root / "model"), root / "in.jsonl"
    path.write_bytes(encode(batch("b1", sample("f1"))) + b"\n")
    assert train([str(path), "--model", str(model), "--output", str(root / "first")]) == 0
    return root


@pytest.fixture
def place(made: Path, tmp_path: Path) -> Path:
    """A copy of it to break."""
    return Path(shutil.copytree(made, tmp_path / "place"))


def tree(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


def refused(place: Path, out: Path, capsys: pytest.CaptureFixture[str]) -> str:
    before = tree(place)
    assert train([str(place / "in.jsonl"), "--model", str(place / "model"), "--output", str(out)]) == 1
    assert tree(place) == before, "nothing was touched"
    said = capsys.readouterr()
    assert said.out == "", "refused before a step"
    assert "--output" in said.err and "name" in said.err
    return said.err


@pytest.mark.parametrize("where", ["model", ".", "model/../model", "link", "above/link", "in.jsonl", "in.jsonl/x"])
def test_the_model_the_input_and_what_holds_them_stay(
    place: Path, where: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "link").symlink_to(place / "model", target_is_directory=True)
    (place / "above").mkdir()
    (place / "above" / "link").symlink_to(place, target_is_directory=True)
    refused(place, place / where, capsys)


def test_a_model_that_is_named_through_a_link_stays(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = place / "model"
    model.rename(place / "real")
    model.symlink_to(place / "real", target_is_directory=True)
    assert "the model" in refused(place, place / "real", capsys)


@pytest.mark.parametrize("file", ["notes.md", "trainer/step.json", ".hidden", "deep/er/thesis.tex", "tokenizer.json"])
def test_somebodys_files_stay(place: Path, file: str, capsys: pytest.CaptureFixture[str]) -> None:
    precious = place / "mine" / file
    precious.parent.mkdir(parents=True)
    precious.write_text("{}")
    assert file in refused(place, place / "mine", capsys)


@pytest.mark.parametrize("file", ["notes.txt", "vocab.json", "trainer/log.txt", "old/adapter_model.safetensors"])
def test_what_was_put_into_a_release_later_stays(place: Path, file: str, capsys: pytest.CaptureFixture[str]) -> None:
    added = place / "first" / file
    added.parent.mkdir(exist_ok=True)
    added.write_text("mine")
    assert file in refused(place, place / "first", capsys)


def test_an_earlier_release_is_replaced_also_through_a_link(place: Path) -> None:
    (place / "latest").symlink_to(place / "first", target_is_directory=True)
    (place / "first" / "trainer" / "probes.json").write_text("{}")  # the gate's answers belong to a release
    arguments = [str(place / "in.jsonl"), "--model", str(place / "model"), "--learning-rate", "0.5"]
    before = (place / "first" / "adapter_model.safetensors").read_bytes()
    assert train([*arguments, "--output", str(place / "latest")]) == 0
    assert (place / "latest").is_symlink() and read_record(place / "first").release_id == "first"
    assert (place / "first" / "adapter_model.safetensors").read_bytes() != before
    assert not list(place.glob(".first*")), "nothing is left beside it"


def test_a_release_from_before_its_files_were_listed_is_known(place: Path) -> None:
    path = place / "first" / "trainer" / "step.json"
    record = msgspec.json.decode(path.read_bytes(), type=StepRecord)
    assert record.files and "trainer/step.json" in record.files
    path.write_bytes(msgspec.json.encode(msgspec.structs.replace(record, files=[])))
    check_replaceable(place / "first", "--output")
    (place / "first" / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match=r"notes\.txt"):
        check_replaceable(place / "first", "--output")


def test_what_came_there_while_training_stays_and_the_release_too(tmp_path: Path) -> None:
    target = tmp_path / "out"

    def fill(directory: Path) -> None:
        (directory / "weights").write_text("new")
        target.mkdir()
        (target / "thesis.tex").write_text("mine")

    with pytest.raises(ConfigError, match=r"thesis\.tex"):
        write_atomically(target, fill)
    assert (target / "thesis.tex").read_text() == "mine"
    assert (tmp_path / ".out.partial" / "weights").read_text() == "new"


def test_a_crash_between_the_renames_loses_no_release(place: Path) -> None:
    (place / "first").rename(place / ".first.former")
    write_atomically(place / "second", lambda d: None)
    with pytest.raises(RuntimeError, match="full"):
        write_atomically(place / "first", lambda d: (_ for _ in ()).throw(RuntimeError("full")))
    assert read_record(place / "first").release_id == "first"
