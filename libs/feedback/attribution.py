"""Which turn the words are about. Pure: from ballots to outcomes per turn, within the window that was shown."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from libs.contracts import EarlierTurn, TurnMatched, Vote
from libs.feedback.judge import Ballot, Judgement, Question
from libs.feedback.votes import Outcome, numbers, outcome


@dataclass(frozen=True, slots=True)
class Feedback:
    """What one next state says about one turn. `earlier` is the turn it speaks of, None for the answered one."""

    feedback_id: str
    outcome: Outcome
    earlier: EarlierTurn | None

    @property
    def target(self) -> Literal["last", "earlier"]:
        return "earlier" if self.earlier else "last"


def feedback_id(turn_id: str, answered_by: str, target: str) -> str:
    """Deterministic: the same words about the same turn get the same id, however often they are delivered."""
    return hashlib.sha256("\x00".join((turn_id, answered_by, target)).encode()).hexdigest()[:32]


def implicit(question: Question) -> Ballot | None:
    """What needs no judge. Asking again for a delivered reply, or editing the message before it, rejects the reply.

    Silence (a next state without a word or a result) is never acceptance: it says nothing.
    """
    if question.evidence != "next_state":
        ground = {"regeneration": "asked again for the same reply", "branch": "left the reply behind"}
        said = Judgement(question.number, -1, question.evidence, ground=ground[question.evidence])
        return Ballot(judgements=(said,))
    if not any(m.text.strip() for m in question.next_state):
        return Ballot()
    return None


def unasked(matched: TurnMatched, reason: str) -> Feedback:
    """The feedback of a turn that no judge was asked about: no vote, and the reason why."""
    said = Outcome(0, 0, "", "", "", (), (Vote(verdict=None, reason=reason),))
    return Feedback(feedback_id(matched.turn_id, matched.answered_by, "last"), said, None)


def attribute(matched: TurnMatched, question: Question, ballots: Sequence[Ballot]) -> list[Feedback]:
    """The answered turn's feedback first (always present), then one for each earlier turn with a verdict or a hint."""
    known = {t.number: t for t in matched.earlier}
    found: list[Feedback] = []
    for number in reversed(numbers(ballots, question)):
        said = outcome(ballots, number)
        earlier = None if number == question.number else known[number]
        if earlier is not None and not (said.verdict or said.hints):
            continue
        turn_id = earlier.turn_id if earlier else matched.turn_id
        target = "earlier" if earlier else "last"
        found.append(Feedback(feedback_id(turn_id, matched.answered_by, target), said, earlier))
    return found
