"""The simulated student: what it complains about and how it words it. Pure: the random source is passed in.

It never says up front what it wants. After a reply it either complains about what it sees or says that it is content.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from experiments.homework.scoring import degenerate, list_violations, words

SYSTEM_PROMPT = "You are a helpful homework assistant. Give clear, well-structured, step-by-step answers."
MAX_COMPLAINTS = 2  # replies of the student's to one question; it gives up after these

_PLAIN_COMPLAINTS = (
    "No, keep the steps, just stop formatting everything as bulleted lists.",
    "Please don't use lists. Write it as a normal paragraph.",
    "The content is fine, but no bullet points please, just plain text.",
    "That's not how I want it. No lists, no bold, just write it out in plain prose.",
    "Too much formatting, I can't hand this in. Write it as one plain paragraph without lists.",
    "Stop using numbered lists! I wanted a normal text.",
    "Keep what you said, but without bullets and headings. Ordinary sentences please.",
    "Why is everything a list again? Just write plain paragraphs.",
    "I don't like these lists. Please write it in plain paragraphs.",
    "Good points, but get rid of the numbering and the bold. A plain text, please.",
    "Нет, шаги оставь, просто перестань всё оформлять маркированными списками.",
    "Не надо списков, напиши обычным текстом, одним абзацем.",
)
_BRIEF_COMPLAINTS = (
    "That's too long. Keep it short, please.",
    "Way too long, I only need the main point in a sentence or two.",
    "The content is right, but make it much shorter.",
    "Please be brief. I don't need a whole essay.",
    "Too wordy. Just give me a short answer.",
    "Слишком длинно. Ответь короче, пожалуйста.",
    "Нет, это слишком длинный ответ, нужно одно-два предложения.",
)
_NONSENSE_COMPLAINTS = (
    "That makes no sense, you are repeating yourself.",
    "This is wrong, it doesn't answer my question at all.",
    "Это не ответ на мой вопрос, ты повторяешься.",
)
_THANKS = (
    "Thanks, that's exactly what I needed.",
    "Perfect, that reads well. Thank you!",
    "Great, this is how I like it. Thanks!",
    "Thank you, that's clear now.",
    "Спасибо, так понятно.",
    "Отлично, то что нужно, спасибо!",
)


@dataclass(frozen=True, slots=True)
class Reply:
    """An assistant's reply as the student sees it. `finished` is false when it was cut at the token limit."""

    text: str
    finished: bool = True


@dataclass(frozen=True, slots=True)
class Preference:
    """What a student likes. `faults` names what is wrong with a reply, empty when it is to the student's taste."""

    name: str
    faults: Callable[[Reply], list[str]]
    complaints: Sequence[str]


def _plain_faults(reply: Reply) -> list[str]:
    bad = degenerate(reply.text)
    return list_violations(reply.text) + ([bad] if bad else [])


BRIEF_MAX_WORDS = 45
BRIEF_MIN_WORDS = 5


def _brief_faults(reply: Reply) -> list[str]:
    bad = degenerate(reply.text, min_words=BRIEF_MIN_WORDS)
    too_long = not reply.finished or len(words(reply.text)) > BRIEF_MAX_WORDS
    return (["too_long"] if too_long else []) + ([bad] if bad else [])


PLAIN = Preference("plain", _plain_faults, _PLAIN_COMPLAINTS)
BRIEF = Preference("brief", _brief_faults, _BRIEF_COMPLAINTS)
PREFERENCES = {preference.name: preference for preference in (PLAIN, BRIEF)}

_NONSENSE = frozenset({"too_short", "few_distinct_words", "loop"})


def answer(preference: Preference, reply: Reply, rng: random.Random) -> tuple[str, bool]:
    """The student's words after `reply`, and whether it is content."""
    faults = preference.faults(reply)
    if not faults:
        return rng.choice(_THANKS), True
    if set(faults) <= _NONSENSE:
        return rng.choice(_NONSENSE_COMPLAINTS), False
    return rng.choice(list(preference.complaints)), False
