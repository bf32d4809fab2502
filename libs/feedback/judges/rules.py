"""The rules judge: transparent, multilingual, no model. It reads signs by strength and says 0 when none is clear.

Order: an undo command; a repeated or tightened request; words that reject or ask for a change; words that accept;
going on to the next thing; without words, what programs reported. Nothing that the assistant or a tool wrote is read as
words: results count by structure (libs.feedback.rules.tools), and machine-written text is never praise.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from libs.feedback.judge import Ballot, Judgement, Question
from libs.feedback.rules import decide
from libs.feedback.rules.clauses import pick, read
from libs.feedback.rules.hints import advise
from libs.feedback.rules.language import FOLDER, Language, fingerprint, languages
from libs.feedback.rules.reading import Reading
from libs.feedback.rules.repeat import Repeat, compare
from libs.feedback.rules.situation import Situation, boilerplate, person_words, related, situation, without
from libs.feedback.rules.targets import names_earlier, target, undone
from libs.feedback.rules.text import MAX_MATTER_CHARS, Words, ends, plain


@dataclass(frozen=True, slots=True)
class RulesJudge:
    """Judges by language files. `folder` holds them; another folder makes another judge (and another version)."""

    folder: Path = FOLDER
    name: str = "rules"
    deterministic: bool = True

    @property
    def version(self) -> str:
        return _version(self.folder)

    async def vote(self, question: Question, index: int) -> Ballot:
        return Ballot(judgements=tuple(self.judge(question)))

    def judge(self, question: Question) -> list[Judgement]:
        """Judgements of the turns that the next state speaks of; empty when there is nothing to go by."""
        seen = situation(question)
        known = languages(self.folder)
        if seen.undo:
            return _undo(question, seen, known)
        spoken = "\n".join(w.text for w in seen.words)
        if not spoken.strip():
            return _machine(question, seen)
        candidates = pick(spoken, known)
        reading = read(spoken, known, _around(question), _about(question))
        repeat = _repeat(question, seen.words, candidates)
        back = names_earlier(question, spoken, candidates)
        found = decide.decide(seen, reading, repeat, related=related(question, spoken, candidates), back=back)
        if found.verdict == 0:
            return _machine(question, seen) if seen.results.state == "failure" and not reading.questions else []
        # "the first one was wrong, this is right": the earlier one is only what the reply is compared with
        number = question.number if reading.elsewhere else target(question, spoken, candidates)
        if number is None:
            return []
        return [_judgement(number, found, reading, repeat, seen)]


@cache
def _version(folder: Path) -> str:
    code = hashlib.sha256()
    for path in sorted(Path(decide.__file__).parent.glob("*.py")):
        code.update(path.read_bytes())
    code.update(Path(__file__).read_bytes())
    return f"rules-{fingerprint(folder)}-{code.hexdigest()[:8]}"


def _undo(question: Question, seen: Situation, known: Sequence[Language]) -> list[Judgement]:
    number = undone(question, [m.text for m in seen.before_undo], [m.text for m in seen.after_undo])
    if number is None:
        return []
    spoken = "\n".join(w.text for w in seen.words)
    advice = advise(read(spoken, known).clauses) if spoken else advise([])
    hint = advice.hint if number == question.number else ""
    return [Judgement(number, -1, "redo", advice.rejected, advice.preserved, hint, ground="undone by command")]


def _machine(question: Question, seen: Situation) -> list[Judgement]:
    state = seen.results.state
    if state == "failure":
        return [Judgement(question.number, -1, "machine", rejected=seen.results.ground, ground=seen.results.ground)]
    if state == "success" and seen.called:
        return [Judgement(question.number, 1, "machine", ground=seen.results.ground)]
    return []


def _around(question: Question) -> str:
    """Enough of the conversation to tell its language."""
    return " ".join([*(w.text for w in person_words(question.prompt)), question.reply[:300]])


def _about(question: Question) -> str:
    """What the answered turn is about, in lower case."""
    asked = [w.text for w in person_words(question.prompt)]
    return plain(" ".join([*asked, ends(question.reply, MAX_MATTER_CHARS)])).lower()


def _repeat(question: Question, said: Sequence[Words], candidates: Sequence[Language]) -> Repeat:
    """The closest relation of the new request to the one that the reply answered, or to any earlier one."""
    common = frozenset().union(*(language.common for language in candidates))
    added = boilerplate(question)
    prompts = [*(turn.prompt for turn in question.earlier), question.prompt]
    old = [w for prompt in prompts for w in person_words(without(prompt, added))]
    found: set[Repeat] = {"same" if w.raw == o.raw else compare(w.text, o.text, common) for w in said for o in old}
    order: tuple[Repeat, ...] = ("same", "rephrased", "parallel")
    return next((r for r in order if r in found), "other")


def _judgement(number: int, found: decide.Decision, reading: Reading, repeat: Repeat, seen: Situation) -> Judgement:
    if found.verdict > 0:
        kept = advise([c for c in reading.clauses if c.wish in {"keep", "fine"}]).preserved
        return Judgement(number, 1, found.kind, preserved=kept, ground=found.ground[:200])
    advice = advise(reading.clauses)
    return Judgement(number, -1, found.kind, advice.rejected, advice.preserved, advice.hint, ground=found.ground[:200])
