"""The hint: a short instruction that, given up front, would have produced the wanted reply. Affirmative if it can be.

"No lists, no headings" makes a small model worse; "Write the answer as a single paragraph of plain text, without any
lists." makes it better. So the person's own affirmative words come first, and a bare prohibition is turned round by the
language file's aspects.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from libs.feedback.privacy import safe
from libs.feedback.rules.language import Aspect, Language
from libs.feedback.rules.reading import Clause
from libs.feedback.rules.text import words

MAX_CHARS = 280
_MAX_PART_CHARS = 200
_VAGUE_WORDS = 4


@dataclass(frozen=True, slots=True)
class Advice:
    """What the words reject, what they keep, and the hint made from both (empty when there is nothing usable)."""

    rejected: str = ""
    preserved: str = ""
    hint: str = ""


def advise(clauses: Sequence[Clause]) -> Advice:
    """Put the clauses of one message together. Clauses with secrets or personal data are left out of all three."""
    usable = [c for c in clauses if safe(c.text)]
    if not usable:
        return Advice()
    language = usable[0].language
    kept = _unique(c.what for c in usable if c.wish in {"keep", "fine"} and c.what)
    unwanted = _unique(c.what or c.text for c in usable if c.wish in {"avoid", "change"})
    return Advice("; ".join(unwanted), "; ".join(kept), _hint(usable, language))


def _hint(clauses: Sequence[Clause], language: Language) -> str:
    # "the tone is fine" is preserved, but only an explicit "keep ..." is worth saying again.
    kept = _unique(c.what for c in clauses if c.wish == "keep" and c.what)
    parts = [language.phrases.get("keep", "{what}").format(what=k) for k in kept]
    # "make it shorter" means nothing before there is an "it": then the aspect says what to do
    vague = [c for c in clauses if c.wish == "do" and _aspects(c) and len(words(c.text)) <= _VAGUE_WORDS]
    wanted = _unique(_end(c.text) for c in clauses if c.wish == "do" and c not in vague)
    rejected = _unique_aspects(a for c in clauses if c.wish in {"avoid", "change"} or c in vague for a in _aspects(c))
    if wanted:
        said = words(" ".join(wanted))
        # One prohibition at most: a list of them is what makes small models worse.
        without = [a.without for a in rejected if words(a.without)[-1] not in said][:1]
        parts += [*wanted[:-1], _join(wanted[-1], without, language)]
    elif rejected:
        parts.append(_join(_end(rejected[0].instead), [a.without for a in rejected][:2], language))
    else:
        unwanted = [c for c in clauses if c.wish == "avoid" and c.what]
        if not unwanted:
            return ""
        parts += [_avoided(c, language) for c in unwanted]
    hint = " ".join(p[:1].upper() + p[1:] for p in parts if len(p) <= _MAX_PART_CHARS)
    return hint if len(hint) <= MAX_CHARS else ""


def _avoided(clause: Clause, language: Language) -> str:
    """ "drop the museum" is an instruction as it stands; of "the museum is not needed" only the object is."""
    match = clause.language.find("avoid", clause.text)
    if match is not None and match.start() == 0 and not clause.text.startswith(clause.what):
        return _end(clause.text)
    return language.phrases.get("avoid", "{what}").format(what=clause.what)


def _aspects(clause: Clause) -> list[Aspect]:
    subject = clause.what or clause.text
    return [a for a in clause.language.aspects if a.match.search(subject)]


def _join(sentence: str, without: Sequence[str], language: Language) -> str:
    if not without:
        return sentence
    joined = f" {language.phrases.get('and', '+')} ".join(without)
    return f"{sentence.rstrip('.!')}, {language.phrases.get('without', '{what}').format(what=joined)}."


def _end(text: str) -> str:
    text = text.strip(" ,;:-")
    return text if text.endswith((".", "!", "?")) else f"{text}."


def _unique(items: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(str(i).strip(" ,.;:!-") if not str(i).endswith(".") else str(i) for i in items))


def _unique_aspects(items: Iterable[Aspect]) -> list[Aspect]:
    found: dict[str, Aspect] = {}
    for aspect in items:
        # One way of writing it says it once: bulleted lists and lists share their remedy.
        if aspect.instead not in {a.instead for a in found.values()}:
            found[aspect.name] = aspect
    return list(found.values())
