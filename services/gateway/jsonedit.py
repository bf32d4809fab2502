"""Edits of single members in JSON text that leave every other byte as it was.

Decoding and encoding again would change number forms, key spacing and escapes that the client is owed unchanged.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import Any, Literal

Action = Literal["null", "remove"]

_SPACE = re.compile(r"[ \t\n\r]*")
_BOM = b"\xef\xbb\xbf"
_decoder = json.JSONDecoder()


class JsonShapeError(ValueError):
    """The text is not the JSON object that was expected."""


@dataclass(frozen=True, slots=True)
class Member:
    """One member of an object: where it starts (its key), where its value starts and ends, and the value."""

    key: str
    start: int
    value_start: int
    end: int
    value: Any


def members(text: str, at: int = 0) -> Iterator[Member]:
    """The members of the object that starts at `at` (white space before it allowed). Raises JsonShapeError."""
    i = _opened(text, at, "{}", "an object")
    while i is not None:
        if text[i : i + 1] != '"':
            raise JsonShapeError("a key was expected")
        start = i
        key, i = scanstring(text, i + 1, True)
        i = _skip(text, i)
        if text[i : i + 1] != ":":
            raise JsonShapeError("a colon was expected")
        value_start = _skip(text, i + 1)
        value, end = _decoder.raw_decode(text, value_start)
        yield Member(key, start, value_start, end, value)
        i = _following(text, end, "}")


def elements(text: str, at: int) -> Iterator[int]:
    """Where each element of the array that starts at `at` starts. Raises JsonShapeError."""
    i = _opened(text, at, "[]", "an array")
    while i is not None:
        yield i
        _, end = _decoder.raw_decode(text, i)
        i = _following(text, end, "]")


def _opened(text: str, at: int, brackets: str, what: str) -> int | None:
    """Where the first item starts, None when there is none."""
    i = _skip(text, at)
    if text[i : i + 1] != brackets[0]:
        raise JsonShapeError(f"not {what}")
    i = _skip(text, i + 1)
    return None if text[i : i + 1] == brackets[1] else i


def _following(text: str, end: int, closing: str) -> int | None:
    """Where the item behind the one that ended starts, None at the closing bracket."""
    i = _skip(text, end)
    if text[i : i + 1] == closing:
        return None
    if text[i : i + 1] != ",":
        raise JsonShapeError("a comma was expected")
    return _skip(text, i + 1)


def edit_choices(text: str, top: Mapping[str, Action], choice: Mapping[str, Action]) -> tuple[str, dict[str, Any]]:
    """The text with members of the outer object and of each object in its `choices` set to null or removed.

    Also returns the outer object as it was. Raises JsonShapeError (or json's ValueError) for other text.
    """
    cuts: list[tuple[int, int, str]] = []
    outer: dict[str, Any] = {}
    for member in _with_edits(text, 0, top, cuts):
        outer[member.key] = member.value
        if member.key == "choices" and isinstance(member.value, list):
            for start in elements(text, member.value_start):
                for _ in _with_edits(text, start, choice, cuts):
                    pass
    return _apply(text, cuts), outer


def edit_body(body: bytes, top: Mapping[str, Action], choice: Mapping[str, Action]) -> tuple[bytes, dict[str, Any]]:
    """`edit_choices` on bytes: what is no UTF-8, or a byte order mark, stays as it is. Raises ValueError."""
    bom = _BOM if body.startswith(_BOM) else b""
    try:
        text, outer = edit_choices(body[len(bom) :].decode("utf-8", "surrogateescape"), top, choice)
    except RecursionError as error:
        raise JsonShapeError("nested too deeply") from error
    return bom + text.encode("utf-8", "surrogateescape"), outer


def append_members(body: bytes, added: Mapping[str, Any]) -> bytes:
    """The object with members added at its end, where they win over earlier ones of the same name."""
    text = body.rstrip()
    if not text.endswith(b"}"):
        raise JsonShapeError("not an object")
    inner = text[:-1].rstrip()
    comma = b"" if inner.endswith(b"{") else b","
    return inner + comma + json.dumps(added, separators=(",", ":")).encode()[1:]


def _with_edits(
    text: str, at: int, actions: Mapping[str, Action], cuts: list[tuple[int, int, str]]
) -> Iterator[Member]:
    found = list(members(text, at))
    kept_end: int | None = None  # of the last member that stays
    run: int | None = None  # where a run of removed members starts
    for member in found:
        if actions.get(member.key) == "remove":
            run = member.start if run is None else run
        else:
            if run is not None:
                cuts.append((run, member.start, ""))
                run = None
            kept_end = member.end
            if actions.get(member.key) == "null" and member.value is not None:
                cuts.append((member.value_start, member.end, "null"))
        yield member
    if run is not None:  # the comma before a run at the end goes with it
        cuts.append((run if kept_end is None else kept_end, found[-1].end, ""))


def _apply(text: str, cuts: list[tuple[int, int, str]]) -> str:
    out: list[str] = []
    at = 0
    for start, end, replacement in sorted(cuts):
        out += [text[at:start], replacement]
        at = end
    return "".join([*out, text[at:]])


def _skip(text: str, i: int) -> int:
    match = _SPACE.match(text, i)
    return match.end() if match else i
