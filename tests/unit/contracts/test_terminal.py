"""What is printed for people: no control character of a record reaches a terminal, JSON stays the same value."""

from __future__ import annotations

import errno
import json

from hypothesis import given
from hypothesis import strategies as st

from libs.contracts.terminal import as_json, os_fault, plain, plain_json

NASTY = "a\x1b[31mred\x07\x9b2J\x7f\u202egnp.exe\u2028b"


def steers(text: str) -> set[str]:
    return {c for c in text if (ord(c) < 32 and c not in "\n\t") or 0x7F <= ord(c) < 0xA0 or c in "\u202e\u2028"}


def test_control_characters_are_spelt_out() -> None:
    assert plain(NASTY) == r"a\x1b[31mred\x07\x9b2J\x7f\u202egnp.exe\u2028b"
    assert plain("tab\tand line\nend, Größe, שלום, 👩‍🚀") == "tab\tand line\nend, Größe, שלום, 👩‍🚀"


@given(st.text())
def test_nothing_of_any_text_steers(text: str) -> None:
    assert not steers(plain(text)) and not steers(plain_json(text)) and not steers(as_json({text: text}))


@given(st.recursive(st.text() | st.none(), lambda inner: st.dictionaries(st.text(), inner) | st.lists(inner)))
def test_json_decodes_to_the_same_value(value: object) -> None:
    assert json.loads(as_json(value)) == value
    assert json.loads(plain_json(json.dumps(value, ensure_ascii=False, indent=1).replace("\n", "\r\n"))) == value


def test_a_fault_of_the_system_names_what_it_can() -> None:
    assert os_fault(OSError(errno.ENOENT, "No such file", "in.jsonl")) == "in.jsonl: No such file"
    full = os_fault(OSError(errno.ENOSPC, "No space left on device"))
    assert "None" not in full and "No space left on device" in full and "free some" in full
    assert os_fault(ConnectionRefusedError(errno.ECONNREFUSED, "refused")) == f"[Errno {errno.ECONNREFUSED}] refused"
