"""Every stored example is a record of its topic, and what is not is refused with the field's name."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import fields

from libs.contracts import TOPICS, Record, decode, encode
from libs.errors import ContractError

FOLDER = Path(__file__).parents[2] / "libs" / "contracts" / "examples"
FILES = sorted(FOLDER.glob("*/v1/*.json"))
REQUIRED = {kind: tuple(f.encode_name for f in fields(kind) if f.required) for kind in TOPICS.values()}
MAPS = {"headers", "dropped", "metrics", "weights", "capture"}  # fields that take an object


def kind_of(path: Path) -> type[Record]:
    return TOPICS[path.parts[-3]]


def content(path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return loaded


def each(path: Path) -> str:
    return f"{path.parts[-3]}/{path.stem}"


def test_every_topic_has_examples_and_nothing_else_has() -> None:
    assert {path.parts[-3] for path in FILES} == set(TOPICS)
    assert {path.parts[-2] for path in FOLDER.glob("*/*/*.json")} == {"v1"}


@pytest.mark.parametrize("path", FILES, ids=each)
def test_round_trip_keeps_every_field(path: Path) -> None:
    record = decode(path.read_bytes(), kind_of(path))
    line = encode(record)
    assert json.loads(line) == content(path)
    assert b"\n" not in line
    assert decode(line, kind_of(path)) == record


@pytest.mark.parametrize("path", FILES, ids=each)
def test_a_missing_field_is_named(path: Path) -> None:
    for name in REQUIRED[kind_of(path)]:
        broken = {key: value for key, value in content(path).items() if key != name}
        with pytest.raises(ContractError, match=f"`{name}`"):
            decode(json.dumps(broken), kind_of(path))


@pytest.mark.parametrize("path", FILES, ids=each)
def test_a_field_of_the_wrong_type_is_named(path: Path) -> None:
    free = {"request", "response"}  # the provider's JSON, whatever it is
    for name in set(content(path)) - free - {"version"}:
        with pytest.raises(ContractError, match=rf"\$\.{name}"):
            decode(json.dumps(content(path) | {name: 12.5 if name in MAPS else {"not": ["this"]}}), kind_of(path))


@pytest.mark.parametrize("path", FILES, ids=each)
def test_another_version_is_refused(path: Path) -> None:
    with pytest.raises(ContractError, match="version is 2"):
        decode(json.dumps(content(path) | {"version": 2}), kind_of(path))


@pytest.mark.parametrize("path", FILES, ids=each)
def test_an_unknown_field_stops_no_consumer(path: Path) -> None:
    assert decode(json.dumps(content(path) | {"of_tomorrow": 1}), kind_of(path)) == decode(
        path.read_bytes(), kind_of(path)
    )


def captured() -> list[tuple[Path, tuple[Any, ...]]]:
    """Every capture in the examples: the file and the way to it."""
    found: list[tuple[Path, tuple[Any, ...]]] = []
    for path in FILES:
        record = content(path)
        ways: list[tuple[Any, ...]] = [()]
        ways += [(name, number) for name in ("samples", "earlier") for number in range(len(record.get(name, ())))]
        found += [(path, way) for way in ways if reach(record, way).get("capture")]
    return found


def reach(record: dict[str, Any], way: tuple[Any, ...]) -> Any:
    for step in way:
        record = record[step]
    return record


@pytest.mark.parametrize(("path", "way"), captured(), ids=lambda v: each(v) if isinstance(v, Path) else str(v))
@pytest.mark.parametrize("name", ["prompt_token_ids", "response_token_ids", "logprobs", "topk_ids", "topk_logprobs"])
@pytest.mark.parametrize("damage", ["cut", "base64", "rank", "dtype"])
def test_a_damaged_capture_is_named(path: Path, way: tuple[Any, ...], name: str, damage: str) -> None:
    record = content(path)
    array = reach(record, way)["capture"][name]
    if damage == "cut":
        array["data"] = array["data"][:-8]
    elif damage == "base64":
        array["data"] = "*" + array["data"][1:]
    elif damage == "rank":
        array["shape"] = [1, *array["shape"]]
    else:
        array["dtype"] = "float32" if array["dtype"] == "int32" else "int32"
    where = f"{way[0]}[{way[1]}]." if way else ""
    with pytest.raises(ContractError, match=re.escape(f"{where}capture.{name}")):
        decode(json.dumps(record), kind_of(path))
