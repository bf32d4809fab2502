"""Compressed bodies are opened for the record, up to a limit; damage is told from a whole body."""

from __future__ import annotations

import gzip
import random
import tracemalloc
import zlib

import cramjam
import pytest
from multidict import CIMultiDict

from services.gateway.encoding import DamagedEncodingError, TooLargeError, UnknownEncodingError, decompress
from services.gateway.scrub import scrub

LIMIT = 2**20
DATA = b"data: {}\n\n" * 50
CODED = {
    "gzip": gzip.compress(DATA),
    "deflate": zlib.compress(DATA),
    "br": bytes(cramjam.brotli.compress(DATA)),
    "zstd": bytes(cramjam.zstd.compress(DATA)),
    "identity": DATA,
    "": DATA,
}


BOMBS = {
    "gzip": gzip.compress(bytes(10**7)),
    "deflate": zlib.compress(bytes(10**7)),
    "br": bytes(cramjam.brotli.compress(bytes(10**7))),
    "zstd": bytes(cramjam.zstd.compress(bytes(10**7))),
}


@pytest.mark.parametrize("encoding", CODED)
def test_every_coding_opens_up_to_the_very_limit(encoding: str) -> None:
    assert decompress(CODED[encoding], encoding, len(DATA)) == DATA
    with pytest.raises(TooLargeError):
        decompress(CODED[encoding], encoding, len(DATA) - 1)


@pytest.mark.parametrize("encoding", BOMBS)
def test_no_more_than_the_limit_is_ever_held(encoding: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(TooLargeError):
            decompress(BOMBS[encoding], encoding, 100_000)
        assert tracemalloc.get_traced_memory()[1] < 500_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "zstd"])
def test_damage_and_an_early_end_are_told_apart_from_a_whole_body(encoding: str) -> None:
    for body in (b"not compressed", CODED[encoding][:-3]):
        with pytest.raises(DamagedEncodingError):
            decompress(body, encoding, LIMIT)


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_the_beginning_of_a_cut_body_opens(encoding: str) -> None:
    data = random.Random(1).randbytes(5000)
    packed = gzip.compress(data) if encoding == "gzip" else zlib.compress(data)
    opened = decompress(packed[:3000], encoding, LIMIT, cut=True)
    assert len(opened) > 1000 and data.startswith(opened)


def test_raw_deflate_without_its_header() -> None:
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    assert decompress(packer.compress(DATA) + packer.flush(), "deflate", LIMIT) == DATA


def test_a_gzip_body_of_several_members() -> None:
    assert decompress(gzip.compress(b"ab") + gzip.compress(b"cd"), "gzip", LIMIT) == b"abcd"


def test_an_unknown_coding() -> None:
    with pytest.raises(UnknownEncodingError):
        decompress(b"x", "lzw", LIMIT)


def test_a_key_in_an_error_text_is_masked() -> None:
    headers = CIMultiDict({"content-encoding": "gzip"})
    body = gzip.compress(b'{"error":"Incorrect API key provided: sk-upstream-key"}')
    clean = scrub(body, headers, ["sk-upstream-key"], LIMIT)
    assert clean == b'{"error":"Incorrect API key provided: [redacted]"}'
    assert "content-encoding" not in headers


def test_an_error_text_without_a_key_keeps_its_bytes() -> None:
    headers = CIMultiDict({"content-encoding": "gzip"})
    body = gzip.compress(b"no key here", mtime=0)
    assert scrub(body, headers, ["sk-upstream-key", "", "key"], LIMIT) == body
    assert headers["content-encoding"] == "gzip"


def test_an_error_text_over_the_limit_is_searched_as_it_is() -> None:
    headers = CIMultiDict({"content-encoding": "gzip"})
    assert scrub(BOMBS["gzip"], headers, ["sk-upstream-key"], 1000) == BOMBS["gzip"]
