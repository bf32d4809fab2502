"""Votes: plurality, ties, early stop against every way the rest could go, abstentions."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.errors import ConfigError
from libs.feedback.judge import Ballot, Judgement, Question, Verdict
from libs.feedback.votes import Rules, TooFewVotes, accepts_hint, collect, is_settled, outcome, plurality, settled
from tests.unit.feedback.make import abstention, ballot, question

VERDICTS: tuple[Verdict, ...] = (-1, 0, 1)


class Scripted:
    """Gives these ballots in order and counts how often it was asked."""

    name = "scripted"
    version = "1"

    def __init__(self, ballots: Sequence[Ballot | float], *, deterministic: bool = False) -> None:
        self._ballots = ballots
        self.deterministic = deterministic
        self.asked: list[int] = []

    async def vote(self, question: Question, index: int) -> Ballot:
        self.asked.append(index)
        found = self._ballots[index]
        if isinstance(found, Ballot):
            return found
        await asyncio.Event().wait()
        raise AssertionError


async def run(judge: Scripted, rules: Rules | None = None) -> list[Ballot]:
    return await collect(judge, question("hm"), rules or Rules(), seen=lambda b: None)


@pytest.mark.parametrize(
    ("votes", "want"),
    [([], 0), ([1], 1), ([1, -1], 0), ([1, 1, -1], 1), ([0, 0, 1], 0), ([1, -1, 0], 0), ([-1, -1, 1, 1, 0], 0)],
)
def test_plurality_with_ties_neutral(votes: list[Verdict], want: int) -> None:
    assert plurality(votes) == want


@settings(deadline=None)  # a loaded machine is no failure
@given(st.lists(st.sampled_from(VERDICTS), max_size=5), st.integers(0, 4))
def test_settled_means_that_no_completion_changes_it(votes: list[Verdict], left: int) -> None:
    if settled(votes, left):
        ends = {plurality([*votes, *rest]) for n in range(left + 1) for rest in product(VERDICTS, repeat=n)}
        assert ends == {plurality(votes)}


@settings(deadline=None)  # a loaded machine is no failure
@given(st.lists(st.tuples(st.sampled_from(VERDICTS), st.booleans()), min_size=1, max_size=4), st.integers(0, 3))
def test_an_early_stop_never_changes_the_outcome(cast: list[tuple[Verdict, bool]], left: int) -> None:
    def make(votes: Sequence[tuple[Verdict, bool]]) -> list[Ballot]:
        return [ballot(v, "do so" if h else "") for v, h in votes]

    q = question("hm")
    if not is_settled(make(cast), q, left):
        return
    now = outcome(make(cast), 1)
    for n in range(left + 1):
        for rest in product(product(VERDICTS, (True, False)), repeat=n):
            end = outcome(make([*cast, *rest]), 1)
            assert (end.verdict, bool(end.hints)) == (now.verdict, bool(now.hints))


async def test_two_equal_votes_of_three_are_enough() -> None:
    judge = Scripted([ballot(-1, "so"), ballot(-1, "so"), ballot(1)])
    assert len(await run(judge)) == 2
    assert judge.asked == [0, 1]


async def test_a_split_asks_for_the_third() -> None:
    judge = Scripted([ballot(-1), ballot(1), ballot(1)])
    assert outcome(await run(judge), 1).verdict == 1
    assert judge.asked == [0, 1, 2]


async def test_an_open_hint_asks_for_the_third_although_the_verdict_is_settled() -> None:
    judge = Scripted([ballot(-1, "so"), ballot(-1), ballot(-1, "so, too")])
    found = outcome(await run(judge), 1)
    assert found.hints == ("so", "so, too")
    assert len(judge.asked) == 3


async def test_a_deterministic_judge_is_asked_once() -> None:
    judge = Scripted([ballot(1)], deterministic=True)
    assert len(await run(judge)) == 1


async def test_an_abstention_is_no_neutral_vote() -> None:
    judge = Scripted([ballot(-1), abstention(), ballot(-1)])
    found = outcome(await run(judge), 1)
    assert found.verdict == -1
    assert [(v.verdict, v.reason) for v in found.votes][1] == (None, "timeout")


async def test_too_few_valid_votes_say_why() -> None:
    judge = Scripted([ballot(1), abstention("http_503", outage=True), abstention("unparsable")])
    with pytest.raises(TooFewVotes, match=r"1 of 2 needed votes are valid \(http_503 x1, unparsable x1\)") as caught:
        await run(judge)
    assert caught.value.outage


async def test_it_stops_asking_when_too_few_can_be_reached() -> None:
    judge = Scripted([abstention("refused"), abstention("refused"), ballot(1)])
    with pytest.raises(TooFewVotes) as caught:
        await run(judge)
    assert judge.asked == [0, 1]
    assert not caught.value.outage


async def test_the_whole_turn_has_a_time_limit() -> None:
    judge = Scripted([0.0, 0.0, 0.0])
    with pytest.raises(TooFewVotes) as caught:
        await run(judge, Rules(turn_timeout_seconds=0.02))
    assert caught.value.abstentions == {"turn_timeout": 2}


async def test_a_turn_that_was_not_shown_is_an_abstention() -> None:
    judge = Scripted([ballot(-1, number=7), ballot(1), ballot(1)])
    ballots = await run(judge)
    assert [b.abstained for b in ballots] == ["unknown_target", "", ""]
    assert outcome(ballots, 1).verdict == 1


def test_hints_of_disagreeing_votes_do_not_count_twice_and_need_more_than_half() -> None:
    assert not accepts_hint([True, False])
    assert accepts_hint([True, True, False])
    assert outcome([ballot(-1, "a"), ballot(-1, "a"), ballot(0)], 1).hints == ("a",)


def test_a_turn_that_half_the_votes_name_is_a_tie() -> None:
    named = Ballot(judgements=(Judgement(1, 0), Judgement(2, -1)))
    assert outcome([named, ballot(0)], 2).verdict == 0


@pytest.mark.parametrize(("votes", "need"), [(0, 0), (3, 4), (3, -1)])
def test_rules_that_cannot_be_met_are_refused(votes: int, need: int) -> None:
    with pytest.raises(ConfigError, match="votes"):
        Rules(votes, need)
