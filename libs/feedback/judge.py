"""What a judge is asked and what it answers. Nothing in here does I/O.

A question shows one answered turn: what it answered, its reply, the next state, and the earlier turns of the session,
numbered from 1 (the oldest). The answered turn itself carries the number after the newest earlier one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from libs.contracts import Message, TurnMatched
from libs.feedback.prompt import prompt_of

Verdict = Literal[-1, 0, 1]
Evidence = Literal["next_state", "regeneration", "branch"]


@dataclass(frozen=True, slots=True)
class NumberedTurn:
    """An earlier turn as the judge sees it. `prompt` is what the reply answered (user words or tool results)."""

    number: int
    prompt: tuple[Message, ...]
    reply: str


@dataclass(frozen=True, slots=True)
class Question:
    """One answered turn with its surroundings. Texts are whole; a judge that needs bounds cuts for itself."""

    prompt: tuple[Message, ...]
    reply: str
    next_state: tuple[Message, ...]
    earlier: tuple[NumberedTurn, ...] = ()
    evidence: Evidence = "next_state"

    @property
    def number(self) -> int:
        """The number of the answered turn."""
        return self.earlier[-1].number + 1 if self.earlier else 1

    def turn(self, number: int) -> NumberedTurn | None:
        """The turn with this number, the answered one included; None when it is outside the window."""
        if number == self.number:
            return NumberedTurn(number, self.prompt, self.reply)
        return next((t for t in self.earlier if t.number == number), None)

    @classmethod
    def of(cls, matched: TurnMatched, *, window: int = 8) -> Question:
        """The question that a turns.matched record asks, with at most `window` earlier turns (the newest)."""
        kept = matched.earlier[-window:] if window else []
        return cls(
            prompt=tuple(matched.prompt or prompt_of(matched.request)),
            reply=matched.reply,
            next_state=tuple(matched.next_state),
            earlier=tuple(NumberedTurn(t.number, tuple(t.prompt), t.reply) for t in kept),
            evidence=matched.evidence,
        )


@dataclass(frozen=True, slots=True)
class Judgement:
    """What the next state says about one turn. `kind` is a short label for reports, `ground` the judge's reason."""

    number: int
    verdict: Verdict
    kind: str = ""
    rejected: str = ""
    preserved: str = ""
    hint: str = ""
    ground: str = ""


@dataclass(frozen=True, slots=True)
class Ballot:
    """One vote: judgements of the turns that it speaks of (a turn not named counts as 0), or an abstention.

    `abstained` is a reason in snake_case; `outage` tells that the judge itself was out of reach, not at a loss.
    """

    judgements: tuple[Judgement, ...] = ()
    abstained: str = ""
    outage: bool = False
    tokens: int = 0

    def verdict(self, number: int) -> Verdict:
        return next((j.verdict for j in self.judgements if j.number == number), 0)

    def judgement(self, number: int) -> Judgement | None:
        return next((j for j in self.judgements if j.number == number), None)


class Judge(Protocol):
    """A plug-in, one file under judges/. `version` changes whenever the same question could be answered differently."""

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> str: ...

    @property
    def deterministic(self) -> bool:
        """Every vote is the same, so one is asked for."""
        ...

    async def vote(self, question: Question, index: int) -> Ballot:
        """Vote number `index` (0-based). Failures are abstentions, not exceptions."""
        ...
