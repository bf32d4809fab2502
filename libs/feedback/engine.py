"""One matched turn through a judge: question, votes, attribution, dispatch. Service and offline form both use it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Protocol

from libs.contracts import TurnJudged, TurnMatched
from libs.feedback.attribution import attribute, implicit
from libs.feedback.dispatch import Weights, records
from libs.feedback.judge import Ballot, Judge, Question
from libs.feedback.keys import question_key
from libs.feedback.votes import Rules, collect


@dataclass(frozen=True, slots=True)
class Options:
    """`window` earlier turns are shown. Without `require_capture` a turn without capture counts as signal, too."""

    window: int = 8
    rules: Rules = field(default_factory=Rules)
    weights: Weights = field(default_factory=Weights)
    require_capture: bool = True


class BallotStore(Protocol):
    """Keeps ballots by content, so that a redelivery asks no judge again. Losing an entry costs a call, no more."""

    async def get(self, key: str) -> list[Ballot] | None: ...

    async def put(self, key: str, ballots: Sequence[Ballot]) -> None: ...


# Entered only when a judge is really asked: not for implicit evidence, not for stored ballots.
Around = Callable[[], AbstractAsyncContextManager[None]]


def _ignore(ballot: Ballot) -> None:
    return None


async def ballots_for(
    judge: Judge,
    question: Question,
    rules: Rules,
    *,
    store: BallotStore | None = None,
    seen: Callable[[Ballot], None] = _ignore,
    around: Around = nullcontext,
) -> list[Ballot]:
    """The ballots on a question: implicit evidence first, then the store, then the judge.

    Raises votes.TooFewVotes; an outcome with too few valid votes is never stored.
    """
    known = implicit(question)
    if known is not None:
        return [known]
    key = question_key(judge, question, rules)
    stored = await store.get(key) if store else None
    if stored is not None:
        return stored
    async with around():
        ballots = await collect(judge, question, rules, seen=seen)
        # Before the slot goes to the next turn: a crash then costs no more calls than there are slots.
        if store:
            await store.put(key, ballots)
    return ballots


async def judge_turn(
    judge: Judge,
    matched: TurnMatched,
    options: Options,
    *,
    now: Callable[[], float],
    store: BallotStore | None = None,
    seen: Callable[[Ballot], None] = _ignore,
    around: Around = nullcontext,
) -> list[TurnJudged]:
    """The turns.judged records of one matched turn: one for the turn itself, and one per earlier turn spoken of.

    Raises votes.TooFewVotes. `now` gives unix seconds.
    """
    question = Question.of(matched, window=options.window)
    ballots = await ballots_for(judge, question, options.rules, store=store, seen=seen, around=around)
    return records(
        matched,
        attribute(matched, question, ballots),
        judge,
        judged_at=now(),
        weights=options.weights,
        require_capture=options.require_capture,
    )
