"""From signs to a verdict. One table, strongest sign first; what is unclear stays 0."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from libs.feedback.rules.reading import Reading
from libs.feedback.rules.repeat import Repeat
from libs.feedback.rules.situation import Situation

_FEW_WORDS = 10
_SAME_MATTER = 0.5
_OTHER_MATTER = 0.2
_SAME_OBJECT = 0.3
_BARE_NO_CHARS = 5


@dataclass(frozen=True, slots=True)
class Decision:
    verdict: Literal[-1, 0, 1]
    kind: str = "ambiguous"
    ground: str = ""


def decide(seen: Situation, r: Reading, repeat: Repeat, *, related: float, back: bool = False) -> Decision:
    """The verdict on the words of one next state (`seen.words` is not empty).

    `related` is the share of the words' content that the request or the reply mention, 0..1. `back`: they go back to
    an earlier turn, which people do to correct it unless they praise it, ask, or want something made of it.
    """
    rejected = _rejection(seen, r, repeat, related)
    if rejected is not None:
        return rejected
    if seen.results.state == "failure" and not (r.accept or r.assent):
        return Decision(0)
    if back and not (r.accept or r.questions or r.create or r.pronoun or r.requests or r.transform or r.doubt):
        return Decision(-1, "earlier", "goes back to an earlier turn")
    return _acceptance(seen, r, repeat, related)


def _rejection(seen: Situation, r: Reading, repeat: Repeat, related: float) -> Decision | None:
    if r.greeting and not (r.negative or r.clauses):
        return Decision(0, "ambiguous", "a greeting")
    if seen.again:
        return Decision(-1, "redo", "asked again by command")
    if repeat == "same":
        return Decision(-1, "redo", "the same request again")
    if seen.asked and len(r.negative) == 1 and len(r.negative[0]) <= _BARE_NO_CHARS:
        return Decision(0, "ambiguous", "declines an offer")
    unclear = _unclear(r)
    if unclear:
        return Decision(0, "ambiguous", unclear)
    for kind, signs in (
        ("sarcasm", r.sarcasm),
        ("correction", r.negative),
        ("correction", r.fault),
        ("partial", r.partial),
        ("redo", r.redo),
    ):
        if signs:
            return Decision(-1, kind, signs[0])
    if repeat == "rephrased" and (seen.fresh or not (r.onward or r.accept)):
        return Decision(-1, "rephrase", "the request in other words")
    if r.change:
        return Decision(-1, "partial", r.change[0])
    other = r.assent or r.create or r.pronoun or r.builds or r.onward or r.questions or seen.switch or seen.fresh
    # A long instruction that shares nothing with the turn is about something else.
    close = related > 0 or len(" ".join(w.text for w in seen.words).split()) <= _FEW_WORDS
    altered = r.alter if close else []
    altered = altered or (r.weak if related >= _SAME_OBJECT else [])
    if altered and not other:
        return Decision(-1, "correction", altered[0])
    return None


def _unclear(r: Reading) -> str:
    """Why the evidence points both ways (empty: it does not). A wrong sign costs more than silence."""
    if r.sarcasm or r.partial:
        return ""
    if r.excused and r.rejects():
        return "rejects, and takes the blame off the reply"
    if r.unsure and not r.rejects():
        return "opens with a no that may reassure"
    if not r.accept:
        return ""
    if r.negative and len(r.bare) == len(r.negative) and not (r.fault or r.redo or r.change or r.alter):
        return "says no and praises"
    if r.bad and not r.rejects():
        return "praises beside a word that rejects"
    return ""


def _acceptance(seen: Situation, r: Reading, repeat: Repeat, related: float) -> Decision:
    if r.accept and (r.requests or r.extend or r.pronoun) and not (r.onward or r.builds or seen.delivered):
        return Decision(0, "ambiguous", "praises and asks for more of it")
    if r.accept:
        return Decision(1, "praise", r.accept[0])
    if r.assent or (r.yes and seen.asked):
        return Decision(1, "built_on", (r.assent or r.yes)[0])
    if repeat == "parallel" or r.doubt:
        return Decision(0)
    if r.onward and (r.create or r.pronoun or r.questions or r.alter or r.weak or r.builds):
        return Decision(1, "moved_on", r.onward[0])
    if r.transform:
        return Decision(0, "ambiguous", "puts the reply into another form: altered or built on")
    if r.pronoun and not (r.create or seen.delivered):
        return Decision(0, "ambiguous", "asks for something with the reply: altered or built on")
    if r.requests and related <= _OTHER_MATTER:
        return Decision(1, "moved_on", r.requests[0])
    if (r.questions or r.requests) and not r.create:
        return Decision(0)
    if seen.fresh and related >= _SAME_MATTER:
        return Decision(0, "ambiguous", "started afresh on the same matter")
    if (r.create or r.pronoun) and r.builds:
        return Decision(1, "built_on", r.builds[0])
    if r.extend and not (seen.delivered or seen.switch or seen.fresh):
        return Decision(0, "ambiguous", "adds to the reply: altered or extended")
    if related >= _SAME_OBJECT and not (seen.delivered or seen.switch or seen.fresh):
        return Decision(0, "ambiguous", "asks for something close to the reply: altered or built on")
    if (r.create or r.pronoun) and not r.alter:
        return Decision(1, "moved_on", r.create[0])
    if (seen.switch or seen.fresh) and (r.create or r.builds or r.weak):
        return Decision(1, "moved_on", "went on to something else")
    return Decision(0)
