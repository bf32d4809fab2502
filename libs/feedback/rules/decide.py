"""From signs to a verdict. One table, strongest sign first; what is unclear stays 0."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from libs.feedback.rules.clauses import Reading
from libs.feedback.rules.repeat import Repeat
from libs.feedback.rules.situation import Situation

_FEW_WORDS = 30


@dataclass(frozen=True, slots=True)
class Decision:
    verdict: Literal[-1, 0, 1]
    kind: str = "ambiguous"
    ground: str = ""


def decide(seen: Situation, r: Reading, repeat: Repeat) -> Decision:
    """The verdict on the words of one next state (`seen.words` is not empty)."""
    rejected = _rejection(seen, r, repeat)
    if rejected is not None:
        return rejected
    if seen.results.state == "failure" and not (r.accept or r.assent):
        return Decision(0)
    return _acceptance(seen, r, repeat)


def _rejection(seen: Situation, r: Reading, repeat: Repeat) -> Decision | None:
    if r.greeting and not (r.negative or r.clauses):
        return Decision(0, "ambiguous", "a greeting")
    if seen.again:
        return Decision(-1, "redo", "asked again by command")
    if r.sarcasm:
        return Decision(-1, "sarcasm", r.sarcasm[0])
    if repeat == "same":
        return Decision(-1, "redo", "the same request again")
    if r.negative:
        return Decision(-1, "correction", r.negative[0])
    if r.fault:
        return Decision(-1, "correction", r.fault[0])
    if r.redo:
        return Decision(-1, "redo", r.redo[0])
    if repeat == "rephrased" and (seen.fresh or not (r.builds or r.onward or r.accept)):
        return Decision(-1, "rephrase", "the request in other words")
    if r.accept and (r.change or r.alter):
        return Decision(-1, "partial", (r.change or r.alter)[0])
    if r.change:
        return Decision(-1, "partial", r.change[0])
    if r.alter and not (r.builds or r.onward or seen.switch or seen.fresh or r.questions):
        return Decision(-1, "correction", r.alter[0])
    return None


def _acceptance(seen: Situation, r: Reading, repeat: Repeat) -> Decision:
    if r.accept:
        return Decision(1, "praise", r.accept[0])
    if r.assent:
        return Decision(1, "built_on", r.assent[0])
    if repeat == "parallel" or r.doubt:
        return Decision(0)
    if r.onward and (r.create or r.questions or r.alter):
        return Decision(1, "moved_on", r.onward[0])
    if r.create and r.builds:
        return Decision(1, "built_on", r.builds[0])
    if r.create and not r.questions and not r.alter:
        return Decision(1, "moved_on", r.create[0])
    if (seen.switch or seen.fresh) and not r.questions and (r.create or r.builds):
        return Decision(1, "moved_on", "went on to something else")
    return Decision(0)
