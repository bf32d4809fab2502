"""JSON that strict readers refuse and clients still read: lone surrogates, invalid UTF-8, a byte order mark."""

from __future__ import annotations

import json
from typing import Any

import msgspec

MAX_DEPTH = 128  # nested arrays and objects; twice what any request is read down to


class NotJsonError(ValueError):
    """The text is no JSON, however leniently read."""


class TooDeepError(ValueError):
    """Nested deeper than MAX_DEPTH: every reader behind us would have to walk it."""


def read_json(data: bytes) -> Any:
    """One JSON value, what cannot be written as UTF-8 replaced by U+FFFD. Raises NotJsonError, TooDeepError."""
    value, exact = decode(data)
    return value if exact else clean(value)


def decode(data: bytes) -> tuple[Any, bool]:
    """One JSON value, and whether it is exact; if not, it may hold lone surrogates (see `clean`).

    The halves of a pair may lie in two pieces of a stream, so they are replaced only once the text is whole.
    Raises NotJsonError, TooDeepError.
    """
    try:
        value, exact = _parse(data)
    except RecursionError as error:
        raise TooDeepError("nested too deeply") from error
    # A value cannot be deeper than it has brackets, and counting those is nearly free.
    if data.count(b"[") + data.count(b"{") > MAX_DEPTH and _deeper(value, MAX_DEPTH):
        raise TooDeepError(f"nested deeper than {MAX_DEPTH}")
    return value, exact


def clean(value: Any) -> Any:
    """The value with pairs of surrogates united and lone ones replaced by U+FFFD, in names too."""
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, dict):
        return {clean(k): clean(v) for k, v in value.items()}
    return [clean(v) for v in value] if isinstance(value, list) else value


def _parse(data: bytes) -> tuple[Any, bool]:
    try:
        return msgspec.json.decode(data), True
    except (msgspec.MsgspecError, UnicodeDecodeError):
        pass
    encoding = json.detect_encoding(data)
    try:
        text = data.decode(encoding, "surrogatepass")
    except UnicodeDecodeError:
        text = data.decode(encoding, "replace")
    try:
        return json.loads(text), False
    except ValueError as error:
        raise NotJsonError("no JSON") from error


def _deeper(value: Any, limit: int) -> bool:
    level = [value]
    for _ in range(limit + 1):
        level = [
            child
            for node in level
            for child in (node.values() if isinstance(node, dict) else node if isinstance(node, list) else ())
            if isinstance(child, dict | list)
        ]
        if not level:
            return False
    return True
