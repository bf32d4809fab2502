"""Compressed bodies are opened for the record, whatever the pieces."""

from __future__ import annotations

import gzip
import itertools
import zlib

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict

from services.gateway.encoding import UnknownEncodingError, decompress, decompressor, finish
from services.gateway.scrub import scrub

DATA = b"data: {}\n\n" * 50
CODED = {
    "gzip": gzip.compress(DATA),
    "deflate": zlib.compress(DATA),
    "br": bytes(cramjam.brotli.compress(DATA)),
    "zstd": bytes(cramjam.zstd.compress(DATA)),
    "identity": DATA,
    "": DATA,
}


@pytest.mark.parametrize("encoding", CODED)
@given(places=st.lists(st.integers(0, 10**4), max_size=6))
def test_any_cut_opens_to_the_same_bytes(encoding: str, places: list[int]) -> None:
    coded = CODED[encoding]
    bounds = sorted({p % (len(coded) + 1) for p in places} | {0, len(coded)})
    opened = decompressor(encoding)
    out = b"".join(opened.feed(coded[a:b]) for a, b in itertools.pairwise(bounds))
    assert out + finish(opened) == DATA


def test_raw_deflate_without_its_header() -> None:
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    assert decompress(packer.compress(DATA) + packer.flush(), "deflate") == DATA


def test_unknown_or_damaged_bodies_stay_as_they_are() -> None:
    with pytest.raises(UnknownEncodingError):
        decompressor("lzw")
    assert decompress(b"x", "lzw") == b"x"
    assert decompress(b"not gzip", "gzip") == b"not gzip"
    assert decompress(b"not brotli", "br") == b"not brotli"


def test_a_key_in_an_error_text_is_masked() -> None:
    headers = CIMultiDict({"content-encoding": "gzip"})
    body = gzip.compress(b'{"error":"Incorrect API key provided: sk-upstream-key"}')
    clean = scrub(body, headers, ["sk-upstream-key"])
    assert clean == b'{"error":"Incorrect API key provided: [redacted]"}'
    assert "content-encoding" not in headers


def test_an_error_text_without_a_key_keeps_its_bytes() -> None:
    headers = CIMultiDict({"content-encoding": "gzip"})
    body = gzip.compress(b"no key here", mtime=0)
    assert scrub(body, headers, ["sk-upstream-key", "", "key"]) == body
    assert headers["content-encoding"] == "gzip"
