"""Compressed bodies: they pass as they are and are opened only for the record, up to a stated size."""

from __future__ import annotations

import zlib

import cramjam

_GZIP, _DEFLATE, _RAW = 16 + zlib.MAX_WBITS, zlib.MAX_WBITS, -zlib.MAX_WBITS
_GZIP_MAGIC = b"\x1f\x8b"
_ZLIB = {"gzip": _GZIP, "x-gzip": _GZIP, "deflate": _DEFLATE}
_CRAMJAM = {"br": cramjam.brotli, "zstd": cramjam.zstd}
_IDENTITY = ("", "identity")


class BodyError(ValueError):
    """A body that passes but cannot be recorded; `reason` labels the metric."""

    reason = "internal"


class UnknownEncodingError(BodyError):
    """A content coding that cannot be opened here."""

    reason = "unknown_encoding"


class DamagedEncodingError(BodyError):
    """Bytes that are not of their coding, or end before it does."""

    reason = "damaged_encoding"


class TooLargeError(BodyError):
    """Larger than what is recorded, once opened."""

    reason = "over_record_limit"


def coding(encoding: str) -> str:
    """The name of one Content-Encoding value, "" for none. Raises UnknownEncodingError."""
    name = encoding.strip().lower()
    if name in _IDENTITY:
        return ""
    if name in _ZLIB or name in _CRAMJAM:
        return name
    raise UnknownEncodingError(f"content encoding {encoding!r}")


def decompress(body: bytes, encoding: str, max_bytes: int, *, cut: bool = False) -> bytes:
    """A body opened. At most `max_bytes` (and a little) are ever held, whatever the body claims to expand to.

    With `cut`, the beginning of a gzip or deflate body opens to the beginning of its text; brotli and zstd need the
    whole. Raises UnknownEncodingError, DamagedEncodingError, TooLargeError.
    """
    name = coding(encoding)
    if not name or not body:
        plain = body
    elif name in _ZLIB:
        plain = _inflate(body, _ZLIB[name], max_bytes, cut)
    else:
        plain = _into(body, name, max_bytes)
    if len(plain) > max_bytes:
        raise TooLargeError(f"more than {max_bytes} bytes once opened")
    return plain


def _inflate(body: bytes, wbits: int, max_bytes: int, cut: bool) -> bytes:
    out = b""
    while body and len(out) <= max_bytes:
        opened = zlib.decompressobj(wbits)
        try:
            out += opened.decompress(body, max_bytes + 1 - len(out))
        except zlib.error as error:
            if wbits == _DEFLATE and not out:
                # "deflate" without the zlib header, which some servers send against RFC 9110.
                return _inflate(body, _RAW, max_bytes, cut)
            raise DamagedEncodingError("damaged compressed body") from error
        if not opened.eof and len(out) <= max_bytes and not cut:
            raise DamagedEncodingError("the compressed body ends too early")
        # A gzip body may be several members in a row (RFC 1952, section 2.2).
        body = opened.unused_data if opened.unused_data.startswith(_GZIP_MAGIC) else b""
    return out


def _into(body: bytes, name: str, max_bytes: int) -> bytes:
    out = bytearray(max_bytes + 1)  # its pages are touched only as far as they are filled
    try:
        size = _CRAMJAM[name].decompress_into(body, out)
    except cramjam.DecompressionError as error:
        # The library tells a full buffer from damage in words only.
        if "whole buffer" in str(error):
            raise TooLargeError(f"more than {max_bytes} bytes once opened") from error
        raise DamagedEncodingError("damaged compressed body") from error
    return bytes(memoryview(out)[:size])
