"""JSON as clients read it: what strict readers refuse is read with U+FFFD in place, other bytes are refused."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.dialects.loose import MAX_DEPTH, NotJsonError, TooDeepError, clean, decode, read_json

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=20,
)


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b'{"a":"x\\ud800y"}', {"a": "x\ufffdy"}),
        (b'{"\\udc00":1}', {"\ufffd": 1}),
        (b'["a\xffb"]', ["a\ufffdb"]),
        (b'["\xed\xa0\xbd\xed\xb8\x80"]', ["\U0001f600"]),  # a pair, each half encoded by itself
        (b'\xef\xbb\xbf{"a":1}', {"a": 1}),
        ('{"a":"ü"}'.encode("utf-16"), {"a": "ü"}),
    ],
)
def test_what_strict_readers_refuse(data: bytes, value: Any) -> None:
    with pytest.raises((msgspec.MsgspecError, UnicodeDecodeError)):
        msgspec.json.encode(msgspec.json.decode(data))
    assert read_json(data) == value
    msgspec.json.encode(read_json(data))


def test_halves_of_a_pair_unite_when_the_text_is_whole() -> None:
    first, second = (decode(part)[0] for part in (b'"\\ud83d"', b'"\\ude00"'))
    assert clean(first + second) == "\U0001f600"


@given(JSON)
def test_what_strict_readers_take_is_the_same(value: Any) -> None:
    assert decode(json.dumps(value, ensure_ascii=False).encode()) == (value, True)


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        msgspec.json.encode(read_json(data))
    except NotJsonError:
        assert not _reads(data)


def _reads(data: bytes) -> bool:
    try:
        json.loads(data)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize("depth", [MAX_DEPTH + 2, 900, 50_000])
@pytest.mark.parametrize("head", [b"", b'"\\ud800",'])
def test_nesting_has_a_bound(depth: int, head: bytes) -> None:
    with pytest.raises(TooDeepError):
        read_json(b"[" + head + b"[" * depth + b"]" * depth + b"]")


def test_nesting_within_the_bound_is_read() -> None:
    assert read_json(b"[" * MAX_DEPTH + b"]" * MAX_DEPTH)
    assert read_json(b"[" + b",".join([b"{}"] * 1000) + b"]") == [{}] * 1000
