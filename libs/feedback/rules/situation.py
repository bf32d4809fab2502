"""The next state sorted out: what a person said, which client commands were given, what programs reported."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from libs.contracts import Message
from libs.feedback.judge import Question
from libs.feedback.rules.language import Language
from libs.feedback.rules.text import MAX_MATTER_CHARS, Words, ends, stems, user_messages
from libs.feedback.rules.tools import ToolReading, is_call, looks_like_failure, read_results

# Client commands by what they say about the reply; the text after SPEAKS is a person's words, after others it is not.
UNDO = frozenset({"undo", "revert", "rollback", "rewind", "restore"})
AGAIN = frozenset({"retry", "regenerate", "redo", "regen"})
FRESH = frozenset({"clear", "reset", "new"})
SWITCH = frozenset({"add", "drop", "read", "read-only", "file", "files"})
SPEAKS = frozenset({"ask", "code", "architect", "chat", "plan", "btw", "context", "say"})


@dataclass(frozen=True, slots=True)
class Situation:
    """`undo`, `again`, `fresh`, `switch`: such a command was given. `called`: the reply was a tool call."""

    words: tuple[Words, ...]
    results: ToolReading
    pasted: bool  # a person or a client passed on a program's failure report as user text
    undo: bool
    again: bool
    fresh: bool
    switch: bool
    called: bool
    asked: bool  # the reply ends with a question to the person
    delivered: bool  # a program reported in between: the reply's work was done
    before_undo: tuple[Message, ...] = ()
    after_undo: tuple[Message, ...] = ()


def person_words(messages: Sequence[Message]) -> list[Words]:
    """User messages that are words of a person: no bare commands, no pasted reports."""
    return [w for w in user_messages(messages) if _is_words(w) and not looks_like_failure(w.raw)]


def boilerplate(question: Question) -> frozenset[str]:
    """Lines that stand in the next state and in an earlier message alike: a client adds them to what a person says.

    A message of which nothing else is left repeats a request; its lines are no boilerplate. A first line must stand in
    two earlier messages: people say "that's wrong, look again" twice.
    """
    before = [*(m for turn in question.earlier for m in turn.prompt), *question.prompt]
    known = Counter(line for m in before if m.role == "user" for line in set(_lines(m.text)))
    found: set[str] = set()
    for message in question.next_state:
        lines = _lines(message.text, at_least=1) if message.role == "user" else []
        common = {line for at, line in enumerate(lines) if known[line] > (at == 0)}
        if len(common) < len(set(lines)):
            found |= common
    return frozenset(found)


def without(messages: Sequence[Message], lines: frozenset[str]) -> list[Message]:
    """The messages without these lines."""
    if not lines:
        return list(messages)
    kept = ("\n".join(line for line in m.text.split("\n") if line.strip() not in lines) for m in messages)
    return [Message(m.role, text) for m, text in zip(messages, kept, strict=True)]


def _lines(text: str, *, at_least: int = 16) -> list[str]:
    return [line.strip() for line in text.split("\n") if len(line.strip()) >= at_least]


def situation(question: Question) -> Situation:
    said = user_messages(without(question.next_state, boilerplate(question)))
    commands = {w.command for w in said}
    spoken = [w for w in said if _is_words(w)]
    reports = [w for w in spoken if looks_like_failure(w.raw)]
    tools = [m for m in question.next_state if m.role == "tool"]
    at = next((i for i, m in enumerate(question.next_state) if _command(m) in UNDO), len(question.next_state))
    results = read_results(question.reply, [m for m in question.next_state[:at] if m.role == "tool"])
    if reports:
        results = read_results("", [Message("tool", w.raw) for w in reports])
    return Situation(
        words=tuple(w for w in spoken if w not in reports),
        results=results,
        pasted=bool(reports),
        undo=at < len(question.next_state),
        again=bool(commands & AGAIN),
        fresh=bool(commands & FRESH),
        switch=bool(commands & SWITCH),
        called=is_call(question.reply),
        asked="?" in question.reply[-200:].rsplit("\n", 1)[-1],
        delivered=bool(tools),
        before_undo=tuple(m for m in question.next_state[:at] if m.role == "tool"),
        after_undo=tuple(tools[len([m for m in question.next_state[:at] if m.role == "tool"]) :]),
    )


def related(question: Question, text: str, candidates: Sequence[Language]) -> float:
    """Share of the text's content words that the request or the reply mention, 0..1; 0 for a text without any."""
    common = frozenset().union(*(language.common for language in candidates))
    wanted = set(stems(text, common))
    about = (ends(text, MAX_MATTER_CHARS) for text in (question.reply, *(m.text for m in question.prompt)))
    known: set[str] = set().union(*(stems(text, common) for text in about))
    return len(wanted & known) / len(wanted) if wanted else 0.0


def _is_words(said: Words) -> bool:
    return bool(said.text.strip()) and (not said.command or said.command in SPEAKS)


def _command(message: Message) -> str:
    said = user_messages([message])
    return said[0].command if said else ""
