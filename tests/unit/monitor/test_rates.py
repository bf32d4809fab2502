"""The definitions of match rate and signal rate, and that order and repetition change nothing."""

from __future__ import annotations

import random

import msgspec
import pytest

from libs.contracts import TurnJudged
from libs.telemetry.ledger import Ledger
from libs.telemetry.rates import Counts
from tests.monitor_records import Talk, batch, release, trained_talk

TTL = 3600.0
T0 = 1_700_000_000.0


def counted(records: list, now: float = T0 + 100, **options: object) -> Counts:
    ledger = Ledger()
    for record in records:
        ledger.observe(record)
    return ledger.counts(ttl_seconds=TTL, now=now, **options)  # type: ignore[arg-type]


def test_a_trained_conversation() -> None:
    c = counted(trained_talk("s", T0))
    assert (c.exchanges, c.turns, c.answerable, c.matched, c.judged, c.signal, c.batched, c.trained) == (
        3, 3, 2, 2, 2, 2, 2, 2,
    )  # fmt: skip
    assert c.match_rate == 1.0  # the last reply waits for its answer: it is in no denominator of the match rate
    assert c.signal_rate == pytest.approx(2 / 3)
    assert c.waiting == 1
    assert c.verdicts == {"-1": 1, "+1": 1}
    assert c.abstentions == {"timeout": 2}
    assert c.rules == {"tag": 2}
    assert c.hints == 1


def test_a_reply_never_answered_lowers_the_match_rate_once_it_expires() -> None:
    talk = list(Talk("s", ["a", "b"], T0).records())
    assert counted(talk, now=T0 + TTL - 1).match_rate == 1.0
    late = counted(talk, now=T0 + TTL + 11)
    assert late.match_rate == 0.5
    assert (late.expired, late.waiting) == (1, 0)


def test_a_successor_that_binds_to_nothing_counts_against_the_reply_before_it() -> None:
    c = counted(list(Talk("s", ["a", "b", "c"], T0, unmatched={1: "ambiguous"}).records()))
    assert (c.answerable, c.matched) == (2, 1)
    assert c.match_rate == 0.5
    assert c.unmatched == {"ambiguous": 1}


def test_side_calls_are_no_turns() -> None:
    c = counted(list(Talk("s", ["a", "title?", "b"], T0, classes={1: "side"}).records()))
    assert c.turns == 2
    assert c.classes == {"main": 2, "side": 1}


def test_no_denominator_gives_no_rate() -> None:
    assert counted([]).match_rate is None
    assert counted([]).signal_rate is None


def test_a_skipped_batch_trains_nothing_and_a_dropped_sample_says_why() -> None:
    talk = Talk("s", ["a", "b", "c"], T0, verdicts={0: -1, 1: -1})
    records = list(talk.records())
    made = batch("b", [r for r in records if isinstance(r, TurnJudged)], T0 + 30)
    assert counted([*records, made, release(made, 0, T0 + 31, event="skipped")]).trained == 0
    c = counted([*records, made, release(made, 1, T0 + 31, dropped={"f-s-0": "stale"})])
    assert c.trained == 1
    assert c.drops == {"stale": 1}


@pytest.mark.parametrize("seed", range(20))
def test_order_and_repetition_change_nothing(seed: int) -> None:
    """Topics are independent: the monitor may read a release before the turn that it trained."""
    records = [*trained_talk("s", T0), *trained_talk("u", T0 + 60, "essays")]
    records += Talk("v", ["a", "b", "c"], T0 + 120, unmatched={2: "reply_not_served"}).records()
    want = counted(records, now=T0 + 500)
    shuffled = records + random.Random(seed).sample(records, len(records) // 2)
    random.Random(seed + 1).shuffle(shuffled)
    got = counted(shuffled, now=T0 + 500)
    assert got == want


def test_an_early_look_delivered_again_does_not_undo_a_binding() -> None:
    talk = Talk("s", ["a", "b"], T0)
    early = Talk("s", ["a", "b"], T0, unmatched={1: "reply_not_served"}).classified(1)
    records = [talk.classified(0), early, talk.classified(1)]
    assert counted([*records, early]) == counted(records)
    assert counted(records).matched == 1


def test_windows_hold_only_their_minutes() -> None:
    records = [*trained_talk("old", T0), *Talk("new", ["a", "b"], T0 + 7200).records()]
    assert counted(records, now=T0 + 7230, window_seconds=300.0).turns == 2
    assert counted(records, now=T0 + 7230, window_seconds=3 * 3600.0).turns == 5
    assert counted(records, now=T0 + 7230).turns == 5


def test_scenarios_are_counted_apart() -> None:
    ledger = Ledger()
    for record in [*trained_talk("s", T0), *Talk("t", ["a"], T0, "essays").records()]:
        ledger.observe(record)
    assert ledger.scenario_names() == ["essays", "homework"]
    assert ledger.counts("essays", ttl_seconds=TTL).turns == 1
    assert ledger.counts("homework", ttl_seconds=TTL).trained == 2


def test_the_release_log_gives_state_by_time_not_by_arrival() -> None:
    talk = Talk("s", ["a", "b", "c"], T0, verdicts={0: -1, 1: -1})
    judged = [r for r in talk.records() if isinstance(r, TurnJudged)]
    first = release(batch("b1", judged[:1], T0 + 30), 1, T0 + 31)
    second = release(batch("b2", judged[1:], T0 + 40), 2, T0 + 41)
    ledger = Ledger()
    for record in (second, first, first, second):
        ledger.observe(record)
    state = ledger.scenarios["homework"]
    assert (state.serving, state.step) == (second.release_id, 2)


def test_cached_buckets_see_what_comes_later() -> None:
    """A bucket counted once must not keep its figures when a fact or a successor arrives."""
    ledger = Ledger()
    talk = Talk("s", ["a", "b", "c"], T0, gap=90.0, unmatched={1: "ambiguous", 2: "ambiguous"})
    ledger.observe(talk.classified(0))
    assert ledger.counts(ttl_seconds=TTL, now=T0 + 1).answerable == 0
    ledger.observe(talk.classified(1))
    assert ledger.counts(ttl_seconds=TTL, now=T0 + 91).answerable == 1
    assert ledger.counts(ttl_seconds=TTL, now=T0 + TTL + 1000).answerable == 2


def test_forgetting_takes_everything_along() -> None:
    ledger = Ledger()
    for record in trained_talk("s", T0):
        ledger.observe(record)
    for exchange_id in list(ledger.turns):
        ledger.forget(exchange_id)
    assert ledger.counts(ttl_seconds=TTL) == Counts()
    assert ledger.turn_of("f-s-0") is None


def test_a_session_id_of_two_tenants_is_two_conversations() -> None:
    mine = Talk("same", ["a"], T0, tenant="ann")
    other = Talk("same", ["b"], T0 + 60, tenant="bob", scenario="homework")
    renamed = [
        msgspec.structs.replace(r, exchange_id=f"bob-{r.exchange_id}") for r in (other.raw(0), other.classified(0))
    ]
    c = counted([mine.raw(0), mine.classified(0), *renamed])
    assert (c.turns, c.answerable, c.waiting) == (2, 0, 2), "the other's turn is no successor"
