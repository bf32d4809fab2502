"""What the simulated student thinks of a reply: pure functions of its text.

`list_violations` finds bold text, headings, bullet and numbered lists and "Step N" lines. `degenerate` finds replies
that would pass only because they say nothing: too few words, loops, hardly any distinct words.
"""

from __future__ import annotations

import re
from collections import Counter

MIN_WORDS = 20
MIN_DISTINCT_RATIO = 0.4
MAX_NGRAM_REPEATS = 2  # the same four words may appear twice, not three times
NGRAM = 4

_PATTERNS: dict[str, re.Pattern[str]] = {
    "bold": re.compile(r"\*\*[^*\n]+\*\*|__[^_\n]+__|<b>|<strong>", re.IGNORECASE),
    "heading": re.compile(r"^\s{0,3}#{1,6}\s+\S", re.MULTILINE),
    "bullet": re.compile(r"^\s*(?:[-*+•–‣▪●]\s+)\S", re.MULTILINE),
    "numbered": re.compile(r"^\s*\(?(?:\d{1,2}|[a-zA-Z]|[ivx]{1,4})[.)]\s+\S", re.MULTILINE),
    "step": re.compile(r"^\W*step\s+(?:\d+|one|two|three|four|five)\b", re.IGNORECASE | re.MULTILINE),
}
_WORD = re.compile(r"[^\W_]+(?:['’-][^\W_]+)*")


def words(text: str) -> list[str]:
    """The words of `text` in lower case."""
    return [word.lower() for word in _WORD.findall(text)]


def list_violations(text: str) -> list[str]:
    """Which kinds of structure `text` uses, out of bold, heading, bullet, numbered, step; empty for plain prose."""
    return [kind for kind, pattern in _PATTERNS.items() if pattern.search(text)]


def distinct_ratio(text: str) -> float:
    """Distinct words over words, 0 for an empty text."""
    found = words(text)
    return len(set(found)) / len(found) if found else 0.0


def degenerate(text: str, *, min_words: int = MIN_WORDS) -> str | None:
    """Why `text` is no answer at all ("too_short", "few_distinct_words", "loop"), or None."""
    found = words(text)
    if len(found) < min_words:
        return "too_short"
    if distinct_ratio(text) < MIN_DISTINCT_RATIO:
        return "few_distinct_words"
    grams = Counter(tuple(found[i : i + NGRAM]) for i in range(len(found) - NGRAM + 1))
    if grams and max(grams.values()) > MAX_NGRAM_REPEATS:
        return "loop"
    return None
