"""Which turn the words are about. The answered turn unless the words name another one."""

from __future__ import annotations

import re
from collections.abc import Sequence

from libs.feedback.judge import NumberedTurn, Question
from libs.feedback.rules.language import Language, group
from libs.feedback.rules.text import stems, user_messages
from libs.feedback.rules.tools import is_call

FULL_WINDOW = 8  # with so many turns shown the oldest one need not be the session's first
_COMMIT = re.compile(r"\b[0-9a-f]{7,40}\b")


def target(question: Question, text: str, candidates: Sequence[Language]) -> int | None:
    """The number of the turn that `text` is about; None when it names an earlier one that cannot be told."""
    if not question.earlier:
        return question.number
    for language in candidates:
        if language.has("better_before", text):
            return question.number
        if language.has("first", text):
            first = question.earlier[0]
            return first.number if first.number == 1 and len(question.earlier) < FULL_WINDOW else None
        if language.has("before_last", text) or language.has("previous", text):
            return question.earlier[-1].number
        if language.has("earlier", text):
            return _by_content(question, text, language)
        if language.has("misdeed", text):
            return _by_action(question, text, language)
    return question.number


def names_earlier(question: Question, text: str, candidates: Sequence[Language]) -> bool:
    """The words speak of an earlier turn by its place or its content."""
    cues = ("first", "before_last", "previous", "earlier")
    return bool(question.earlier) and any(language.has(cue, text) for language in candidates for cue in cues)


def undone(question: Question, texts: Sequence[str], undo_at: Sequence[str]) -> int | None:
    """The turn whose change an undo command takes back: the one whose results name the commit, otherwise the last one
    that was not merely asked a question. None when that one is not shown."""
    commits = {c for text in undo_at for c in _COMMIT.findall(text)}
    if any(c in text for c in commits for text in texts):
        return question.number
    for turn in reversed(question.earlier):
        following = question.turn(turn.number + 1)
        if following and any(c in m.text for c in commits for m in following.prompt):
            return turn.number
    shown = (_answered(question), *reversed(question.earlier))
    return next((turn.number for turn in shown if not _only_asked(turn)), None)


def _only_asked(turn: NumberedTurn) -> bool:
    said = user_messages(turn.prompt)
    return bool(said) and said[-1].command == "ask"


def _by_content(question: Question, text: str, language: Language) -> int | None:
    """The turn that shares most content words with the text. A tie, or none, names nothing."""
    wanted = set(stems(text, language.common))
    scores = {t.number: _overlap(wanted, t, language) for t in (*question.earlier, _answered(question))}
    best = max(scores.values())
    leaders = [n for n, score in scores.items() if score == best]
    if best == 0:
        return question.earlier[-1].number if len(question.earlier) == 1 else None
    return leaders[0] if len(leaders) == 1 else None


def _by_action(question: Question, text: str, language: Language) -> int | None:
    """The tool call that did what is complained of, newest first; the answered turn when none matches."""
    kinds = [p for p in language.actions.values() if p.search(text)]
    objects = set(stems(group(language.find("misdeed", text)) or text, language.common))
    best, found = 0.0, question.number
    for turn in (_answered(question), *reversed(question.earlier)):
        if not is_call(turn.reply):
            continue
        call = turn.reply.lower()
        score = sum(bool(p.search(_spaced(call))) for p in kinds) + 0.5 * len(
            objects & set(stems(_spaced(call), language.common))
        )
        if score > best:
            best, found = score, turn.number
    return found


def _spaced(call: str) -> str:
    return re.sub(r"[_(){}\[\]\"'`:,/.=-]+", " ", call)


def _answered(question: Question) -> NumberedTurn:
    return NumberedTurn(question.number, question.prompt, question.reply)


def _overlap(wanted: set[str], turn: NumberedTurn, language: Language) -> float:
    prompt = {s for m in turn.prompt if m.role == "user" for s in stems(m.text, language.common)}
    # A word of the request names the turn better than one that only occurs in its long reply.
    reply = set(stems(turn.reply, language.common))
    return sum(2.0 if _among(w, prompt) else float(_among(w, reply)) for w in wanted)


def _among(word: str, known: set[str]) -> bool:
    """Also in another form: "packing" names a turn that says "pack"."""
    if word in known:
        return True
    return len(word) > 3 and any(
        len(k) > 3 and (word.startswith(k) or k.startswith(word) or word[:5] == k[:5]) for k in known
    )
