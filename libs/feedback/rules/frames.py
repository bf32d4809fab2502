"""Frames: what turns a rejecting word round or takes it out, read before the signs.

"No notes", "gar nicht schlecht" and "no podría ser mejor" praise with a negation; "kein Problem" says nothing of
problems; "my last plan was terrible, yours ..." rejects something else; "wrong window" and "my mistake" take the blame
off the reply; quotations and sentences about words are not said of it. A verdict with the wrong sign trains the
opposite, so a frame that cannot be resolved leaves the sentence without a say.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from libs.feedback.rules.language import Language, group
from libs.feedback.rules.text import words

Void = Literal["", "excused", "mention", "own_task", "third"]

FRAMES = ("agrees", "approves", "idle", "elsewhere", "excuses", "mention", "own_task")
# Quotations of two words and more; a single quoted word is often the very thing that a correction is about.
_QUOTATION = re.compile(r"\"[^\"\n]{3,300}\"|«[^»\n]{3,300}»|(?<!\w)'(?=\w)(?:[^'\n]|(?<=\w)'(?=\w)){3,300}'(?!\w)")
_SPEAKS_OF_WORDS = re.compile("[\"'«»?ǂ]")  # nothing that mentions words does without one of these
_MARK = "ǂ"  # a letter that no expression names and `\w` takes for a word
_MARKED = re.compile(f"{_MARK}(\\d+){_MARK}")


@dataclass(frozen=True, slots=True)
class Frame:
    """A sentence without its idioms. `approves`: the praise among them; `partial`: praise taken back by a "but".

    `void`: why nothing in the sentence rejects the reply (empty: it may). `elsewhere`: a clause on another thing was
    taken out. `found`: any frame was there.
    """

    text: str
    approves: tuple[str, ...] = ()
    partial: bool = False
    void: Void = ""
    elsewhere: bool = False
    found: bool = False


def mask(text: str) -> tuple[str, list[str]]:
    """The text with each quotation of two words and more replaced by a mark, and the quotations."""
    if '"' not in text and "'" not in text and "«" not in text:
        return text, []
    taken: list[str] = []

    def put(match: re.Match[str]) -> str:
        if len(words(match[0])) < 2:
            return match[0]
        taken.append(match[0])
        return f"{_MARK}{len(taken) - 1}{_MARK}"

    return _QUOTATION.sub(put, text), taken


def unmask(text: str, quotations: list[str]) -> str:
    """The text with its quotations back."""
    return _MARKED.sub(lambda m: quotations[int(m[1])] if int(m[1]) < len(quotations) else m[0], text)


def framed(text: str, language: Language) -> bool:
    """Some frame of the language is in the text."""
    return any(language.has(key, text) for key in FRAMES)


def unframe(text: str, language: Language, about: str) -> Frame:
    """Take the frames out of one sentence. `about` is the turn's own text in lower case."""
    void = _void(text, language, about)
    agreed = language.find("agrees", text)
    left = text[agreed.end() :] if agreed else text
    praise, partial = [], False
    for match in language.cues["approves"].finditer(left):
        praise.append(match[0])
        but = language.find("but", left[match.end() :])
        rest = left[match.end() + but.end() :] if but else ""
        partial = partial or (bool(words(rest)) and not language.has("accept", rest))
    other = language.find("elsewhere", left)
    for key, there in (("elsewhere", other), ("approves", praise), ("idle", True)):
        left = language.cues[key].sub(" ", left) if there else left
    if left == text:
        return Frame(text, void=void, found=bool(void))
    left = re.sub(r"\s+", " ", left).lstrip(" ,.!?;:-").rstrip(" ,;:-")
    return Frame(left, tuple(praise), partial, void, other is not None, True)


def _void(text: str, language: Language, about: str) -> Void:
    if _SPEAKS_OF_WORDS.search(text) and language.has("mention", text):
        return "mention"
    if language.has("excuses", text):
        return "excused"
    if language.has("own_task", text):
        return "own_task"
    match = language.find("third", text)
    # "my flight is wrong" when neither request nor reply know of a flight is not about the reply
    return "third" if match is not None and group(match).lower()[:6] not in about else ""
