"""Text as the rules read it: what a person wrote, without code, quotes and text that a program put there."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

from libs.contracts import Message
from libs.feedback.characters import visible

_QUOTES = str.maketrans(
    {"’": "'", "‘": "'", "“": '"', "”": '"', "„": '"', "ё": "е", "Ё": "Е", "…": ".", "—": "-", "–": "-"}
)
_FENCE = re.compile(r"(```|~~~).*?(\1|\Z)", re.DOTALL)
_QUOTED_LINE = re.compile(r"^\s*(?:>|\|)\s?.*$", re.MULTILINE)
# Blocks that clients and tools put into user messages. Unclosed, only names that no type parameter has count.
_BLOCK = re.compile(r"<([a-zA-Z][\w.-]*)(?:\s[^<>]*)?>.*?</\1\s*>", re.DOTALL)
_OPEN_BLOCK = re.compile(
    r"</?(?:system|assistant|tool|instructions?|verdict|conversation|\w+[-_]\w+)(?:\s[^<>]*)?>[^\n]*", re.IGNORECASE
)
_CONTROL_TOKEN = re.compile(r"<\|[^|<>]{1,40}\|>|\[/?INST\]|<<\/?SYS>>", re.IGNORECASE)
_ROLE_HEADER = re.compile(
    r"^\W{0,6}(?:system|assistant|developer|tool|judge|grader|evaluator)\b[^\n:]{0,24}:.*$",
    re.IGNORECASE | re.MULTILINE,
)
# Sentences that speak to whoever grades instead of to the assistant. They are not feedback, whatever they say.
_TO_THE_GRADER = re.compile(
    r"(?:verdict|score|rating|grade|reward|label|оценк\w*|балл\w*|bewertung|puntuación|calificación|\bnote)"
    r"\W{0,12}(?:must be |should be |is |of |to |von |=|:)*\W{0,6}[+-]?[01]\b"
    r"|\\boxed|评分|(?:verdict|grader|grading|evaluator|rater|verdictbot|оценщик|bewerter|evaluador|évaluateur)\b"
    r"|\bignore (?:all|any|the|everything|previous|prior|above)\b.{0,40}(?:instruction|above|output|answer)"
    r"|\b(?:output|answer|respond|reply) with verdict\b|\byou are no longer\b|\bnew (?:grading |system )?policy\b",
    re.IGNORECASE,
)
_WORD = re.compile(r"[^\W_]+(?:[-_./'][^\W_]+)*", re.UNICODE)
_IDENTIFIER = re.compile(r"[_./\d]")
_SENTENCE = re.compile(r"(?<=[.!?。！？])\s+|\n+|;\s+|(?<=[。！？])")
# A flood is read at both ends, so that reading it takes bounded time (tests/unit/feedback/test_rules_cost.py).
MAX_WORDS_CHARS = 4_000
MAX_MATTER_CHARS = 16_000  # of one text when only its subject counts
_MAX_SENTENCE_CHARS = 600
_MAX_SENTENCES = 100


@dataclass(frozen=True, slots=True)
class Words:
    """One user message: `raw` as written, `text` as rules read it, `command` when it is a client command."""

    raw: str
    text: str
    command: str = ""


def plain(text: str) -> str:
    """NFKC, straight quotes, е for ё, invisible characters removed, spaces folded (line ends kept)."""
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text).translate(_QUOTES)
    text = visible(text)
    return re.sub(r"[ \t]+", " ", re.sub(r"\s*\n\s*", "\n", text)).strip()


def ends(text: str, most: int, between: str = "\n") -> str:
    """The text, or its beginning and its end where it has more than `most` characters."""
    return text if len(text) <= most else f"{text[: most // 2]}{between}{text[-(most // 2) :]}"


def spoken(text: str) -> str:
    """What is left for a person to have said: no code blocks, quoted lines, markup blocks, role headers."""
    text = _FENCE.sub("\n", ends(text, MAX_WORDS_CHARS))
    text = _OPEN_BLOCK.sub("\n", _BLOCK.sub("\n", text) if "</" in text else text)
    text = _CONTROL_TOKEN.sub("\n", text)
    text = _QUOTED_LINE.sub("", text)
    text = _ROLE_HEADER.sub("", text)
    return plain(text)


def sentences(text: str) -> list[str]:
    found = (s.strip(" \t-*") for s in _SENTENCE.split(text))
    kept = [ends(s, _MAX_SENTENCE_CHARS, " ") for s in found if s.strip(".!?,")]
    if len(kept) > _MAX_SENTENCES:
        kept = kept[: _MAX_SENTENCES // 2] + kept[-_MAX_SENTENCES // 2 :]
    return [s for s in kept if not _TO_THE_GRADER.search(s)]


def words(text: str) -> list[str]:
    """Lower-case words; identifiers, paths and option names stay whole."""
    return _WORD.findall(plain(text).lower())


def stems(text: str, common: frozenset[str]) -> list[str]:
    """Content words cut to six letters, which folds most inflections; identifiers stay whole."""
    return [w if _IDENTIFIER.search(w) else w[:6] for w in words(text) if w not in common and len(w) > 1]


def user_messages(messages: Sequence[Message]) -> list[Words]:
    """The user messages of a next state or a prompt; "/undo" is a command, "/ask why?" is words after a command."""
    found = []
    for message in messages:
        if message.role != "user":
            continue
        match = re.match(r"\s*/([a-z][\w-]*)(?:\s+|$)(.*)", message.text, re.DOTALL)
        if match and "/" not in match[1]:
            found.append(Words(message.text, spoken(match[2]), match[1].lower()))
        else:
            found.append(Words(message.text, spoken(message.text)))
    return found
