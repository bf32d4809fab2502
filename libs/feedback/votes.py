"""m independent votes: plurality, ties neutral, abstentions that are never neutral votes, and an early stop.

A ballot that names no judgement of a turn counts as a vote of 0 on it. Votes run in as many rounds as are needed: first
the smallest number that can settle the outcome, then one by one while it is open.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from libs.contracts import Vote
from libs.errors import ConfigError, RetryError
from libs.feedback.judge import Ballot, Judge, Judgement, Question, Verdict

_GROUND_CHARS = 200


class TooFewVotes(RetryError):
    """Fewer valid votes than needed. `outage` tells that every abstention came from a judge out of reach."""

    def __init__(self, ballots: Sequence[Ballot], need: int) -> None:
        self.abstentions = Counter(b.abstained for b in ballots if b.abstained)
        self.outage = any(b.outage for b in ballots)
        why = ", ".join(f"{reason} x{n}" for reason, n in sorted(self.abstentions.items()))
        super().__init__(f"{_valid(ballots)} of {need} needed votes are valid ({why})", reason="too_few_votes")


@dataclass(frozen=True, slots=True)
class Rules:
    """`votes` is m; `need` valid ones make an outcome (default: more than half); times are in seconds."""

    votes: int = 3
    need: int = 0
    turn_timeout_seconds: float = 60.0

    def __post_init__(self) -> None:
        if self.votes < 1 or not 0 <= self.need <= self.votes:
            raise ConfigError(f"votes is {self.votes}, needed {self.need}: want votes >= 1 and needed <= votes")

    @property
    def needed(self) -> int:
        return self.need or self.votes // 2 + 1


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the votes say of one turn. `hints` are the distinct accepted hints, empty when no hint was accepted."""

    number: int
    verdict: Verdict
    kind: str
    rejected: str
    preserved: str
    hints: tuple[str, ...]
    votes: tuple[Vote, ...]


def plurality(votes: Sequence[Verdict]) -> Verdict:
    """The verdict with the most votes; 0 when two share the lead or nobody voted."""
    leaders = Counter(votes).most_common(2)
    if not leaders or (len(leaders) == 2 and leaders[0][1] == leaders[1][1]):
        return 0
    return leaders[0][0]


def settled(votes: Sequence[Verdict], left: int) -> bool:
    """No way of casting or losing the `left` votes still changes the plurality."""
    counts = Counter(votes)
    lead = plurality(votes)
    # A lead of more than `left` stands whatever comes; a tie that reads 0 may be broken by any vote.
    return all(counts[lead] - counts[other] > left for other in (-1, 0, 1) if other != lead)


def accepts_hint(votes: Sequence[bool]) -> bool:
    """More votes carry a hint than carry none."""
    return 2 * sum(votes) > len(votes)


def numbers(ballots: Sequence[Ballot], question: Question) -> list[int]:
    """Every turn that a ballot judges, the answered turn always, oldest first."""
    return sorted({question.number} | {j.number for b in ballots for j in b.judgements})


def is_settled(ballots: Sequence[Ballot], question: Question, left: int) -> bool:
    """Neither a verdict nor the acceptance of a hint can change any more, for any turn."""
    valid = [b for b in ballots if not b.abstained]
    for number in numbers(valid, question):
        if not settled([b.verdict(number) for b in valid], left):
            return False
        hinted = [_hints(b, number) for b in valid]
        # Strictly more than half must say yes: count the worst case on either side.
        if accepts_hint(hinted) != accepts_hint([*hinted, *[True] * left]) or accepts_hint(hinted) != accepts_hint(
            [*hinted, *[False] * left]
        ):
            return False
    # A turn that nobody has named yet has a vote of 0 from every valid ballot: it is settled along with these.
    return True


async def collect(judge: Judge, question: Question, rules: Rules, *, seen: Callable[[Ballot], None]) -> list[Ballot]:
    """Ask until the outcome is settled or m votes are cast. `seen` is told each ballot (metrics, budget).

    Raises TooFewVotes when fewer than `rules.needed` are valid.
    """
    votes = 1 if judge.deterministic else rules.votes
    need = min(votes, rules.needed)
    ballots: list[Ballot] = []
    deadline = asyncio.get_running_loop().time() + rules.turn_timeout_seconds
    while len(ballots) < votes:
        valid = _valid(ballots)
        left = votes - len(ballots)
        if valid + left < need or (valid >= need and is_settled(ballots, question, left)):
            break
        ask = max(1, min(left, need - valid))
        first = len(ballots)
        round_ = await asyncio.gather(*(_vote(judge, question, first + i, deadline) for i in range(ask)))
        for ballot in round_:
            seen(ballot)
        ballots.extend(round_)
    if _valid(ballots) < need:
        raise TooFewVotes(ballots, need)
    return ballots


def within(ballot: Ballot, question: Question) -> Ballot:
    """The ballot, or an abstention when it judges a turn that was not shown."""
    if any(question.turn(j.number) is None for j in ballot.judgements):
        return Ballot(abstained="unknown_target", tokens=ballot.tokens)
    return ballot


async def _vote(judge: Judge, question: Question, index: int, deadline: float) -> Ballot:
    try:
        async with asyncio.timeout_at(deadline):
            return within(await judge.vote(question, index), question)
    except TimeoutError:
        return Ballot(abstained="turn_timeout", outage=True)


def outcome(ballots: Sequence[Ballot], number: int) -> Outcome:
    """What these ballots say of turn `number`. Texts come from the first ballot that agrees with the verdict."""
    valid = [b for b in ballots if not b.abstained]
    verdict = plurality([b.verdict(number) for b in valid])
    agreeing = [j for b in valid if (j := b.judgement(number)) and j.verdict == verdict]
    speaker = next((j for j in agreeing if j.rejected or j.preserved), agreeing[0] if agreeing else None)
    hints: tuple[str, ...] = ()
    if accepts_hint([_hints(b, number) for b in valid]):
        said = (j.hint.strip() for b in valid if (j := b.judgement(number)))
        hints = tuple(dict.fromkeys(h for h in said if h))
    return Outcome(
        number=number,
        verdict=verdict,
        kind=speaker.kind if speaker else "",
        rejected=speaker.rejected if speaker else "",
        preserved=speaker.preserved if speaker else "",
        hints=hints,
        votes=tuple(_record(b, number) for b in ballots),
    )


def _record(ballot: Ballot, number: int) -> Vote:
    if ballot.abstained:
        return Vote(verdict=None, reason=ballot.abstained)
    said: Judgement | None = ballot.judgement(number)
    return Vote(
        verdict=ballot.verdict(number), reason=said.ground[:_GROUND_CHARS] if said else "nothing about this turn"
    )


def _hints(ballot: Ballot, number: int) -> bool:
    said = ballot.judgement(number)
    return bool(said and said.hint.strip())


def _valid(ballots: Sequence[Ballot]) -> int:
    return sum(not b.abstained for b in ballots)
