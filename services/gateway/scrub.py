"""Credentials in an upstream's error text: providers like to quote the key they refuse."""

from __future__ import annotations

from collections.abc import Iterable

from multidict import CIMultiDict

from services.gateway.encoding import BodyError, decompress

_MASK = b"[redacted]"
_MIN_LENGTH = 6  # a shorter "secret" would blank out ordinary words


def scrub(body: bytes, headers: CIMultiDict[str], secrets: Iterable[str], max_bytes: int) -> bytes:
    """The body without any of `secrets`. Unchanged, compression included, when none is in it.

    A body that cannot be opened, or is over `max_bytes` once opened, is searched as it is.
    """
    try:
        plain = decompress(body, headers.get("content-encoding", ""), max_bytes)
    except BodyError:
        plain = body
    clean = plain
    for secret in secrets:
        if len(secret) >= _MIN_LENGTH:
            clean = clean.replace(secret.encode(), _MASK)
    if clean == plain:
        return body
    headers.popall("content-encoding", None)
    return clean
