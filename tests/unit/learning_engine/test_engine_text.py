"""Text that is shown early is never taken back: characters, joins and stop strings, against decoding at the end."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.learning.engine.text import TextStream


def decode(ids: Sequence[int]) -> str:
    return bytes(ids).decode("utf-8", "replace")


def stream(text: TextStream, ids: Sequence[int]) -> list[str]:
    out = []
    for token in ids:
        out.append(text.push(token))
        if text.stopped:
            return out
    return [*out, text.finish()]


@given(st.text(max_size=30))
def test_pieces_join_to_the_whole(words: str) -> None:
    pieces = stream(TextStream(decode), words.encode())
    assert "".join(pieces) == words
    assert all("�" not in piece or "�" in words for piece in pieces)


def test_half_a_character_waits_for_its_end() -> None:
    pieces = stream(TextStream(decode), "né".encode())
    assert pieces == ["n", "", "é", ""]


def test_an_unfinished_character_is_shown_when_nothing_more_comes() -> None:
    assert "".join(stream(TextStream(decode), "é".encode()[:1])) == "�"


@given(st.text("ab", max_size=12), st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3))
def test_text_ends_before_the_first_stop_string(words: str, stops: list[str]) -> None:
    text = TextStream(decode, stops)
    shown = "".join(stream(text, words.encode()))
    # the first one to be complete ends the reply; of several complete at once the earliest beginning counts
    ends = [words.find(stop) + len(stop) for stop in stops if stop in words]
    if not ends:
        assert (shown, text.stopped) == (words, False)
    else:
        seen = words[: min(ends)]
        assert shown == seen[: min(seen.find(stop) for stop in stops if stop in seen)]
        assert text.stopped


def test_a_beginning_of_a_stop_string_is_held_back() -> None:
    assert stream(TextStream(decode, ["END"]), b"xEN") == ["x", "", "", "EN"]
    assert stream(TextStream(decode, ["END"]), b"xEND") == ["x", "", "", ""]


@pytest.mark.parametrize("stops", [(), ("zz",)])
def test_tokens_that_decode_differently_in_company(stops: tuple[str, ...]) -> None:
    """Decoders that put a space between words, but none at the start, still give the whole text."""

    def spaced(ids: Sequence[int]) -> str:
        return " ".join("abc"[i] for i in ids)

    assert "".join(stream(TextStream(spaced, stops), [0, 1, 2])) == "a b c"
