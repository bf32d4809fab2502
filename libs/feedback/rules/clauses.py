"""What a person's words do, clause by clause: reject, keep, ask for a change, accept, go on, ask, doubt."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from libs.feedback.rules.language import Language, group
from libs.feedback.rules.text import sentences, words

Wish = Literal["avoid", "keep", "fine", "change", "do"]

_CYRILLIC = re.compile(r"[\u0400-\u04ff]")
_SHORT_WORDS = 6


@dataclass(frozen=True, slots=True)
class Clause:
    """One instruction: `text` without courtesies, `what` its object (for avoid, keep and fine)."""

    wish: Wish
    text: str
    what: str
    language: Language = field(repr=False)


@dataclass(slots=True)
class Reading:
    """The signs found. Each list holds the words that made them, so that a verdict can show its ground."""

    negative: list[str] = field(default_factory=list)
    fault: list[str] = field(default_factory=list)
    sarcasm: list[str] = field(default_factory=list)
    accept: list[str] = field(default_factory=list)
    partial: list[str] = field(default_factory=list)
    assent: list[str] = field(default_factory=list)
    harmless: list[str] = field(default_factory=list)
    yes: list[str] = field(default_factory=list)
    transform: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    redo: list[str] = field(default_factory=list)
    change: list[str] = field(default_factory=list)
    alter: list[str] = field(default_factory=list)
    weak: list[str] = field(default_factory=list)
    create: list[str] = field(default_factory=list)
    builds: list[str] = field(default_factory=list)
    pronoun: list[str] = field(default_factory=list)
    extend: list[str] = field(default_factory=list)
    onward: list[str] = field(default_factory=list)
    questions: list[str] = field(default_factory=list)
    doubt: list[str] = field(default_factory=list)
    greeting: bool = False
    clauses: list[Clause] = field(default_factory=list)

    def add(self, other: Reading) -> None:
        for name in self.__dataclass_fields__:
            mine, theirs = getattr(self, name), getattr(other, name)
            setattr(self, name, mine or theirs if isinstance(mine, bool) else [*mine, *theirs])


def pick(text: str, known: Sequence[Language], likely: Sequence[Language] = ()) -> tuple[Language, ...]:
    """The languages the text may be in, likeliest first: by script, then by its commonest words.

    `likely` are the languages of the text around it: a short sentence is read in those if its script allows.
    """
    script = "cyrillic" if len(_CYRILLIC.findall(text)) * 2 > len(re.findall(r"[^\W\d_]", text)) else "latin"
    candidates = [language for language in known if script in language.scripts]
    found = words(text)
    scores = {language.code: sum(w in language.common for w in found) for language in candidates}
    best = max(scores.values(), default=0)
    if best < 2 and (around := [language for language in likely if language in candidates]):
        return tuple(around)
    # Few common words say little, so a short text is read in every language that fits it about as well.
    kept = [language for language in candidates if best < 2 or scores[language.code] >= max(2, best * 0.7)]
    return tuple(sorted(kept or candidates, key=lambda language: -scores[language.code]))


def read(text: str, known: Sequence[Language], around: str = "") -> Reading:
    """Read one message, each sentence in the languages that it may be in; signs add up.

    `around` is the conversation before it. A sentence too short to show its language is read in the message's, then in
    the conversation's; when that finds no sign, in every language of its script.
    """
    reading = Reading()
    likely = pick(text, known, pick(around, known) if around else ())
    for sentence in sentences(text):
        part = Reading()
        for language in pick(sentence, known, likely):
            _sentence(sentence, language, part)
        if part == Reading():
            for language in pick(sentence, known):
                _sentence(sentence, language, part)
        reading.add(part)
    return reading


@dataclass(frozen=True, slots=True)
class _Sentence:
    """One sentence in one language; `bare` is it without courtesies. It may ask, begin something new, wish."""

    text: str
    bare: str
    language: Language
    asks: bool
    creates: bool
    wishes: bool

    def has(self, key: str) -> bool:
        return self.language.has(key, self.text)

    def opens(self, key: str) -> bool:
        return self.language.has(key, self.bare)


def _sentence(text: str, language: Language, out: Reading) -> None:
    bare = soften(text, language)
    has = language.has
    s = _Sentence(text, bare, language, has("question", text), has("create", bare), has("wish", text))
    if s.has("greeting"):
        out.greeting = True
        return
    _rejections(s, out)
    _going_on(s, out)
    _commands(s, out)
    if not s.asks or s.wishes:
        _instruct(s, out)
    if not s.asks:
        _acceptance(text, language, out)
    elif "," in text:
        # "great, and how do I ...?": the word before the question stands for itself
        head = text.split(",")[0]
        if len(words(head)) <= 3 and not has("question", head):
            _acceptance(head, language, out)
            if s.has("polite"):
                out.requests.append(text)


def _rejections(s: _Sentence, out: Reading) -> None:
    if s.has("sarcasm"):
        out.sarcasm.append(s.text)
    if s.has("negative") or (s.has("opening_no") and not s.has("harmless_no")):
        out.negative.append(s.text)
    # In a new task "the app crashes when ..." describes the task, not the reply.
    if s.has("fault") and not s.asks and not s.creates:
        out.fault.append(s.text)
    redo = s.language.find("redo", s.text)
    if redo is not None and (s.wishes or not s.asks) and (not s.creates or len(redo[0]) * 2 > len(s.bare)):
        out.redo.append(s.text)


def _going_on(s: _Sentence, out: Reading) -> None:
    if not s.asks and s.language.has("assent", s.text.strip(" .!?")):
        out.assent.append(s.text)
    if s.language.has("yes", s.text.strip(" .!")):
        out.yes.append(s.text)
    if s.has("doubt"):
        out.doubt.append(s.text)
    if s.has("next"):
        out.onward.append(s.text)
    if s.has("builds"):
        out.builds.append(s.text)


def _commands(s: _Sentence, out: Reading) -> None:
    """What the sentence asks for: a change of the reply, something new, something with the reply, an answer."""
    # "explain it in simple words" changes the reply; "explain black holes in simple words" is another task
    about_reply = not s.creates or s.opens("pronoun") or len(words(s.bare)) <= _SHORT_WORDS
    if (s.wishes or (not s.asks and about_reply)) and (s.has("change") or (s.wishes and s.opens("alter"))):
        out.change.append(s.text)
    if s.opens("transform"):
        out.transform.append(s.text)
    if s.asks and not s.wishes:
        # "can you write a cover letter?" is a request in the form of a question
        (out.requests if s.creates and s.has("polite") else out.questions).append(s.text)
    elif s.creates:
        (out.pronoun if s.opens("pronoun") else out.create).append(s.text)
        if s.opens("extend"):
            out.extend.append(s.text)
    if not s.asks and (s.opens("alter") or s.has("instead")):
        # "move the imports" may alter what was delivered or be the next task: what it is about decides
        (out.weak if s.opens("weak") and not s.has("instead") else out.alter).append(s.text)


def _instruct(s: _Sentence, out: Reading) -> None:
    """The clauses, for what is rejected, kept and hinted; some of them are change requests by themselves."""
    found = _instructions(s.text, s.language)
    out.clauses.extend(found)
    if s.creates:
        return
    has = s.language.has
    if not s.asks:
        out.alter.extend(c.text for c in found if has("alter", c.text) and not has("weak", c.text))
    # "no lists, please": a property of the reply that is not wanted
    out.change.extend(c.text for c in found if c.wish == "avoid" and _aspect(c))
    but = s.language.find("but", s.text)
    if but is not None and s.text[: but.start()].rstrip().endswith(","):
        late = (c for c in found if s.text.find(c.text) >= but.start())
        out.change.extend(c.text for c in late if c.wish in {"avoid", "do"})


def _acceptance(text: str, language: Language, out: Reading) -> None:
    if language.has("polite_only", text) or language.has("wish", text):
        return
    harmless = language.find("harmless_no", text)
    if harmless is not None:
        out.harmless.append(text)
        text = text[harmless.end() :]  # "no, that's all, thanks": the thanks count, the "no" does not
    for match in language.cues["accept"].finditer(text):
        before = re.split(r"[,.;:!]", text[: match.start()])[-1]
        if language.has("negator", before):
            # "it is not perfect": praise under a negation speaks against the reply
            out.negative.append(text)
            return
        rest = text[match.end() :]
        but = language.find("but", rest)
        if but is not None and len(words(rest[but.end() :])) > 0 and not language.has("accept", rest[but.end() :]):
            # "good, but shorter": accepted in part
            out.partial.append(text)
            return
        if not language.has("spoils", rest):  # "great, now nothing works" is no praise, and not surely a complaint
            out.accept.append(match[0])
        return


def _aspect(clause: Clause) -> bool:
    return any(a.match.search(clause.what or clause.text) for a in clause.language.aspects)


def soften(text: str, language: Language) -> str:
    """The clause without leading courtesies and connectives ("no, please just stop" -> "stop")."""
    text = text.strip(" ,.!?;:-")
    while True:
        match = language.cues["soften"].match(text)
        if match is None or match.end() == 0 or match.end() >= len(text):
            return text
        text = text[match.end() :].lstrip(" ,.!?;:-")


def _instructions(text: str, language: Language) -> list[Clause]:
    found: list[Clause] = []
    for part in re.split(language.cues["contrast"].pattern, text, flags=re.IGNORECASE):
        clause = soften(part or "", language)
        if len(words(clause)) < 1:
            continue
        keep = language.find("keep", clause)
        avoid = language.find("avoid", clause)
        fine = keep or (language.find("fine", clause) if avoid is None or avoid.start() >= 2 else None)
        if fine is not None and not language.has("negative", clause):
            found.append(Clause("keep" if keep else "fine", clause, group(fine), language))
            continue
        affirms = language.has("alter", clause) or language.has("create", clause)
        if avoid is not None and (not affirms or avoid.start() < 2):
            found.append(Clause("avoid", clause, group(avoid), language))
        elif language.has("change", clause) and not language.has("negative", clause):
            found.append(Clause("do" if affirms else "change", clause, "", language))
        elif affirms and not language.has("negative", clause):
            found.append(Clause("do", clause, "", language))
        elif language.has("negative", clause) or language.has("change", clause) or language.has("fault", clause):
            found.append(Clause("change", clause, "", language))
    return found
