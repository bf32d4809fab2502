"""Compressed bodies: they pass as they are and are opened only for the record."""

from __future__ import annotations

import zlib
from typing import Protocol

import cramjam


class Decompressor(Protocol):
    """Opens a compressed stream piece by piece."""

    def feed(self, chunk: bytes) -> bytes: ...


class UnknownEncodingError(ValueError):
    """A content coding that cannot be opened here; the exchange passes but is not kept."""


class _Identity:
    def feed(self, chunk: bytes) -> bytes:
        return chunk


class _Zlib:
    def __init__(self, wbits: int) -> None:
        self._object = zlib.decompressobj(wbits)
        self._deflate = wbits == zlib.MAX_WBITS

    def feed(self, chunk: bytes) -> bytes:
        try:
            return self._object.decompress(chunk)
        except zlib.error:
            if not self._deflate:
                raise
            # "deflate" without the zlib header, which some servers send against RFC 9110.
            self._deflate, self._object = False, zlib.decompressobj(-zlib.MAX_WBITS)
            return self._object.decompress(chunk)


class _Cramjam:
    """Brotli and zstd: the pieces so far are opened again as a whole, which only end-of-stream recording does."""

    def __init__(self, name: str) -> None:
        self._name, self._compressed = name, bytearray()

    def feed(self, chunk: bytes) -> bytes:
        self._compressed += chunk
        return b""

    def finish(self) -> bytes:
        module = cramjam.brotli if self._name == "br" else cramjam.zstd
        return bytes(module.decompress(bytes(self._compressed)))


def decompressor(encoding: str) -> Decompressor:
    """For one Content-Encoding value. Raises UnknownEncodingError."""
    name = encoding.strip().lower()
    if name in ("", "identity"):
        return _Identity()
    if name in ("gzip", "x-gzip"):
        return _Zlib(16 + zlib.MAX_WBITS)
    if name == "deflate":
        return _Zlib(zlib.MAX_WBITS)
    if name in ("br", "zstd"):
        return _Cramjam(name)
    raise UnknownEncodingError(f"content encoding {encoding!r}")


def finish(opened: Decompressor) -> bytes:
    """What only the end of the stream gives. Raises ValueError when the compressed bytes are damaged."""
    if isinstance(opened, _Cramjam) and opened._compressed:
        try:
            return opened.finish()
        except cramjam.DecompressionError as error:
            raise ValueError("damaged compressed body") from error
    return b""


def decompress(body: bytes, encoding: str) -> bytes:
    """A whole body opened; as it is when its coding is unknown or the bytes are damaged."""
    try:
        opened = decompressor(encoding)
        return opened.feed(body) + finish(opened)
    except (ValueError, zlib.error):
        return body
