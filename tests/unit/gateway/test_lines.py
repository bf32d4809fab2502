"""The filter over a stream's data lines: however it is cut, nothing is lost, and no line is kept without bound."""

from __future__ import annotations

from unittest import mock

from hypothesis import given
from hypothesis import strategies as st

from services.gateway.capture import lines
from services.gateway.capture.lines import DataLines

STREAMS = st.lists(
    st.sampled_from([b"data: {}", b"\n", b"\n\n", b": ping", b"data: " + b"x" * 50, b"\r\n", b"data", b"y" * 30]),
    max_size=30,
).map(b"".join)


def through(stream: bytes, places: list[int], most: int) -> tuple[bytes, DataLines]:
    cuts = sorted({p % (len(stream) + 1) for p in places})
    pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    with mock.patch.object(lines, "MOST_LINE_BYTES", most):
        own = DataLines(lambda payload: b"<" + payload + b">")
        out = []
        for piece in pieces:
            out.append(own.feed(piece))
            assert own._bytes == sum(map(len, own._tail)) <= most
        return b"".join([*out, own.close()]), own


def rewritten(stream: bytes) -> bytes:
    return through(stream, [], 10_000)[0]


@given(STREAMS, st.lists(st.integers(0, 2_000), max_size=12))
def test_cuts_change_nothing(stream: bytes, places: list[int]) -> None:
    assert through(stream, places, 10_000)[0] == rewritten(stream)


@given(STREAMS, st.lists(st.integers(0, 2_000), max_size=12))
def test_overlong_lines_go_on_as_they_came(stream: bytes, places: list[int]) -> None:
    out, own = through(stream, places, 40)
    assert out.replace(b"<", b"").replace(b">", b"") == stream
    if not own.overlong:
        assert out == rewritten(stream)


def test_what_follows_an_overlong_line_is_rewritten_again() -> None:
    with mock.patch.object(lines, "MOST_LINE_BYTES", 20):
        own = DataLines(lambda payload: b"<" + payload + b">")
        assert own.feed(b"data: " + b"x" * 30) == b"data: " + b"x" * 30
        assert own.feed(b"yyy") == b"yyy"
        assert own.feed(b"zz\ndata: 1\nda") == b"zz\ndata: <1>\n"
        assert own.overlong and own.close() == b"da"
