"""Members are cut out of JSON text without a change to any other byte."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.gateway.jsonedit import JsonShapeError, append_members, edit_choices, elements, members

LEAF = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8)
)
VALUE = st.recursive(LEAF, lambda v: st.lists(v, max_size=3) | st.dictionaries(st.text(max_size=5), v, max_size=3))
OBJECT = st.dictionaries(st.sampled_from(["a", "b", "gone", "gone_too", "null_me", "é"]), VALUE, max_size=6)
STYLES = st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", " :\t")])


def edited(value: dict[str, Any]) -> dict[str, Any]:
    return {k: None if k == "null_me" else v for k, v in value.items() if not k.startswith("gone")}


@given(OBJECT, st.lists(OBJECT, max_size=3), STYLES, st.booleans())
def test_edit_equals_decode_edit_encode(
    top: dict[str, Any], choices: list[dict[str, Any]], style: tuple[str, str], ascii_only: bool
) -> None:
    actions: Any = {"gone": "remove", "gone_too": "remove", "null_me": "null"}
    text = json.dumps({**top, "choices": choices}, separators=style, ensure_ascii=ascii_only)
    result, outer = edit_choices(text, actions, actions)
    assert json.loads(result) == {**edited(top), "choices": [edited(c) for c in choices]}
    assert outer == {**top, "choices": choices}


@given(OBJECT, st.lists(OBJECT, max_size=3), STYLES)
def test_without_matches_not_a_byte_changes(
    top: dict[str, Any], choices: list[dict[str, Any]], style: tuple[str, str]
) -> None:
    text = json.dumps({**top, "choices": choices}, separators=style)
    assert edit_choices(text, {"absent": "remove"}, {"absent": "null"})[0] == text


def test_number_forms_and_escapes_stay() -> None:
    text = '{"a":1.0e+2,"gone":[1],"b":"\\u0041\\/", "c" : -0}'
    assert edit_choices(text, {"gone": "remove"}, {})[0] == '{"a":1.0e+2,"b":"\\u0041\\/", "c" : -0}'


@pytest.mark.parametrize("text", ["", "[]", "{", '{"a"}', '{"a":1 "b":2}', "{1:2}", '{"a":1,}'])
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        list(members(text))


def test_broken_arrays_are_refused() -> None:
    with pytest.raises(JsonShapeError):
        list(elements("{}", 0))
    with pytest.raises(JsonShapeError):
        list(elements("[1 2]", 0))


def test_appended_members_win() -> None:
    assert json.loads(append_members(b' {"a":1} \n', {"a": 2})) == {"a": 2}
    assert append_members(b"{ }", {"a": 2}) == b'{"a":2}'
    with pytest.raises(JsonShapeError):
        append_members(b"[]", {"a": 2})
