"""Did the person ask the same thing again? A repeated or tightened request rejects the reply without a word on it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import Literal

from libs.feedback.rules.text import ends, stems, words

Repeat = Literal["same", "rephrased", "parallel", "other"]

_SAME = 0.92  # share of words in common, in order
_CLOSE = 0.6  # the same for a rephrasing
_CONTAINED = 0.75  # share of the shorter text's content words found in the longer one
_MOST_CHARS = 2_000  # of one request; comparing takes the product of both lengths
MIN_WORDS = 3  # shorter texts ("hi", "go on") say nothing when repeated


def compare(new: str, old: str, common: frozenset[str]) -> Repeat:
    """How request `new` relates to `old`.

    same       the same words; rephrased: the same request with words added, dropped or sharpened
    parallel   the same sentence about something else ("a haiku about spring" / "a haiku about rain")

    Of long texts both ends are compared, so those that differ in between only are "other", not "same".
    """
    whole = max(len(new), len(old)) <= _MOST_CHARS
    new, old = ends(new, _MOST_CHARS), ends(old, _MOST_CHARS)
    a, b = words(old), words(new)
    if min(len(a), len(b)) < MIN_WORDS:
        return "same" if a == b and a else "other"
    if a == b:
        return "same" if whole else "other"
    old_stems, new_stems = set(stems(old, common)), set(stems(new, common))
    shared = old_stems & new_stems
    shorter = min(len(old_stems), len(new_stems))
    contained = len(shared) / shorter if shorter else 0.0
    if len(shared) < 2:
        return "other"
    matcher = SequenceMatcher(None, a, b, autojunk=False)
    ratio = matcher.ratio()
    if ratio < _CLOSE and contained < _CONTAINED:
        return "other"
    if _swaps_object(matcher.get_opcodes(), a, b, common):
        return "parallel"
    return "same" if ratio >= _SAME and whole else "rephrased"


def _swaps_object(
    codes: Sequence[tuple[str, int, int, int, int]], a: list[str], b: list[str], common: frozenset[str]
) -> bool:
    """A content word gave way to one that does not resemble it: another request of the same shape."""
    for code, i1, i2, j1, j2 in codes:
        if code != "replace":
            continue
        out = [w for w in a[i1:i2] if w not in common]
        into = [w for w in b[j1:j2] if w not in common]
        if out and into and not any(_akin(x, y) for x in out for y in into):
            return True
    return False


def _akin(x: str, y: str) -> bool:
    if x[:4] == y[:4] or x in y or y in x:
        return True
    parts_x, parts_y = set(re.split(r"[-_./']", x)), set(re.split(r"[-_./']", y))
    return bool({p for p in parts_x & parts_y if len(p) > 2}) or SequenceMatcher(None, x, y).ratio() > 0.7
