"""What a person's words do, clause by clause: reject, keep, ask for a change, accept, go on, ask, doubt."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from libs.feedback.rules.frames import Frame, framed, mask, unframe
from libs.feedback.rules.language import Language, group
from libs.feedback.rules.reading import Clause, Reading
from libs.feedback.rules.text import sentences, words

_CYRILLIC = re.compile(r"[\u0400-\u04ff]")
_SHORT_WORDS = 6
_BARE_WORDS = 2


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


def read(text: str, known: Sequence[Language], around: str = "", about: str = "") -> Reading:
    """Read one message, each sentence in the languages that it may be in; signs add up.

    `around` is the conversation before it, `about` the answered turn's whole text in lower case. A sentence too short
    to show its language is read in the message's, then in the conversation's; when that finds no sign, in every
    language of its script. Quotations of two words and more are left out.
    """
    reading = Reading()
    likely = pick(text, known, pick(around, known) if around else ())
    text, quotations = mask(text)
    for sentence in sentences(text):
        reading.add(_read_sentence(sentence, known, pick(sentence, known, likely), about))
    if quotations:
        reading.restore(quotations)
    return reading


def _read_sentence(sentence: str, known: Sequence[Language], chosen: Sequence[Language], about: str) -> Reading:
    part = _read_in(sentence, chosen, about)
    if part.framed or not (part.rejects() or part == Reading()):
        return part
    # "No está mal" in an English conversation: its own language turns what the other one takes for a rejection.
    possible = pick(sentence, known)
    own = [language for language in possible if language not in chosen and framed(sentence, language)]
    if own:
        return _read_in(sentence, own[:1], about)
    return part if part.rejects() else _read_in(sentence, possible, about)


def _read_in(sentence: str, chosen: Sequence[Language], about: str) -> Reading:
    part = Reading()
    frames = [(unframe(sentence, language, about), language) for language in chosen]
    turned = [(frame, language) for frame, language in frames if frame.found]
    for frame, language in turned[:1] or frames:
        _sentence(frame, language, part)
    return part


@dataclass(frozen=True, slots=True)
class _Sentence:
    """One sentence in one language; `bare` is it without courtesies. It may ask, begin something new, wish."""

    text: str
    bare: str
    language: Language
    asks: bool
    creates: bool
    wishes: bool
    void: bool  # nothing in it speaks against the reply

    def has(self, key: str) -> bool:
        return self.language.has(key, self.text)

    def opens(self, key: str) -> bool:
        return self.language.has(key, self.bare)


def _sentence(frame: Frame, language: Language, out: Reading) -> None:
    text = frame.text
    out.framed = out.framed or frame.found
    out.elsewhere = out.elsewhere or frame.elsewhere
    (out.partial if frame.partial else out.accept).extend(frame.approves)
    if frame.void in {"mention", "own_task"}:
        (out.questions if frame.void == "mention" else out.doubt).append(text)
        if language.has("next", text):
            out.onward.append(text)
        return
    if not words(text):
        return
    if frame.void == "excused":
        out.excused.append(text)
    bare = soften(text, language)
    has = language.has
    asks = has("question", text)
    s = _Sentence(text, bare, language, asks, _creates(text, bare, language), has("wish", text), bool(frame.void))
    if s.has("greeting"):
        out.greeting = True
        return
    _rejections(s, out)
    _going_on(s, out)
    _commands(s, out)
    if (not s.asks or s.wishes) and not s.void:
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


def _creates(text: str, bare: str, language: Language) -> bool:
    """It asks for something new; "great for tourists" is no request that starts with "for"."""
    before = text[: max(text.find(bare), 0)]
    praised = not re.search(r"[,.!:;-]", before) and language.has("accept", before.strip())
    return language.has("create", bare) and not praised


def _rejections(s: _Sentence, out: Reading) -> None:
    if s.has("sarcasm"):
        out.sarcasm.append(s.text)
    if s.void:
        return
    if s.has("bad") and not s.asks and not s.creates:
        out.bad.append(s.text)
    opening = s.has("opening_no") and not s.has("harmless_no")
    if s.has("negative"):
        out.negative.append(s.text)
    elif opening and (_reassures(s.text) or s.has("accept")):
        out.unsure.append(s.text)
    elif opening:
        out.negative.append(s.text)
        if len(words(s.text)) <= _BARE_WORDS:
            out.bare.append(s.text)
    # In a new task "the app crashes when ..." describes the task, not the reply.
    if s.has("fault") and not s.asks and not s.creates:
        out.fault.append(s.text)
    redo = s.language.find("redo", s.text)
    if redo is not None and (s.wishes or not s.asks) and (not s.creates or len(redo[0]) * 2 > len(s.bare)):
        out.redo.append(s.text)


def _reassures(text: str) -> bool:
    """ "No no, <something>" says more often that all is well than that it is not; "no, no, no!" does not."""
    said = words(text)
    return len(said) > 2 and said[0] == said[1] and any(w != said[0] for w in said)


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
    if s.void and not s.asks:
        return
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
