"""What the state keeps and forgets: TTL, tombstones, bounds, redelivery, late turns, the earlier-turns window."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace

from libs.contracts import Array, Capture, encode
from libs.matching.plan import Limits
from libs.matching.records import heavy
from tests.unit.matching.talk import CRON, FILES, PLAN, SHORT, Item, World, said, user

ASK = user("List what is in this folder.")
NO = user("No, keep the steps, just stop using bullet lists.")
NAMED = {"x-session-id": "s"}


def test_the_time_to_answer_begins_with_the_reply_not_with_its_request() -> None:
    w = World(limits=Limits(ttl_seconds=10.0))
    first = w.exchange([ASK], PLAN, seconds=30.0)
    w.now += 30.0
    assert w.turn(w.exchange([ASK, said(PLAN), NO], SHORT)) == first


def test_a_ttl_that_cuts_off_an_answer_says_so() -> None:
    w = World(limits=Limits(ttl_seconds=60.0))
    w.exchange([ASK], PLAN, headers=NAMED)
    w.now += 100.0
    late = w.exchange([ASK, said(PLAN), NO], SHORT, headers=NAMED)
    line = w.line(late)
    assert (w.turn(late), line.reason, line.exchange_class) == (None, "expired", "main")
    assert line.gap_seconds is not None and line.gap_seconds > 100.0
    assert line.expired_sessions == 1


def test_an_answer_within_the_ttl_reports_its_gap() -> None:
    w = World(limits=Limits(ttl_seconds=60.0))
    w.exchange([ASK], PLAN)
    w.now += 50.0
    line = w.line(w.exchange([ASK, said(PLAN), NO], SHORT))
    assert line.reason == "matched"
    assert line.gap_seconds == pytest.approx(50.5)


def test_a_session_that_is_used_stays_open() -> None:
    w = World(limits=Limits(ttl_seconds=60.0))
    items: list[Item] = [ASK]
    names = [w.exchange(items, PLAN)]
    for text in (SHORT, FILES, CRON):
        w.now += 40.0
        items = [*items, said([PLAN, SHORT, FILES][len(names) - 1]), user(f"Question {len(names)}?")]
        names.append(w.exchange(items, text))
    assert [w.turn(n) for n in names[1:]] == names[:-1]
    assert [e.turn_id for e in w.binding(names[-1]).earlier] == names[:2], "TTL ran out on none of them"


def test_open_sessions_are_bounded_and_evictions_counted() -> None:
    w = World(limits=Limits(max_sessions=2))
    first = w.exchange([user("One.")], PLAN)
    w.exchange([user("Two.")], PLAN)
    third = w.exchange([user("Three.")], PLAN)
    assert (w.line(first).evicted_sessions, w.line(third).evicted_sessions) == (0, 1)
    gone = w.exchange([user("One."), said(PLAN), NO], SHORT)
    assert w.turn(gone) is None


def test_turns_and_bytes_of_a_session_are_bounded() -> None:
    w = World(limits=Limits(max_turns=3))
    items: list[Item] = [ASK]
    for n in range(5):
        w.exchange(items, f"{PLAN} {n}", headers=NAMED)
        items = [*items, said(f"{PLAN} {n}"), user(f"Question {n}?")]
    assert w.turn(w.exchange([ASK, said(f"{PLAN} 0"), NO], SHORT, headers=NAMED)) is None
    assert w.turn(w.exchange(items, SHORT, headers=NAMED)) == "x0005"
    small = World(limits=Limits(max_session_bytes=2_000))
    for n in range(3):
        small.exchange([user("x" * 900 + str(n))], f"{PLAN} {n}", headers=NAMED)
    old = [user("x" * 900 + "0"), said(f"{PLAN} 0"), NO]
    new = [user("x" * 900 + "2"), said(f"{PLAN} 2"), NO]
    assert small.turn(small.exchange(new, SHORT, headers=NAMED)) == "x0003"
    assert small.turn(small.exchange(old, SHORT, headers=NAMED)) is None


def test_a_redelivered_record_gives_the_same_records() -> None:
    w = World()
    w.exchange([ASK], PLAN)
    w.exchange([ASK, said(PLAN), NO], SHORT)
    w.exchange([ASK, said(PLAN), NO, said(SHORT), user("Thanks.")], CRON)
    for record in w.records:
        before = w.outcomes[record.exchange_id]
        again = w.match(record)
        assert [encode(b) for b in again.bindings] == [encode(b) for b in before.bindings]
        assert [encode(c) for c in again.classified] == [encode(c) for c in before.classified]


def test_whichever_of_the_two_arrives_second_completes_the_binding() -> None:
    w = World()
    turn = w.exchange([ASK], PLAN, match=False)
    answer = w.exchange([ASK, said(PLAN), NO], SHORT)
    assert w.line(answer).reason == "reply_not_served"
    late = w.match(w.records[0])
    (bound,) = late.bindings
    assert (bound.turn_id, bound.answered_by, bound.rule) == (turn, answer, "prefix")
    assert [m.text for m in bound.next_state] == [NO["content"]]
    assert (bound.reply, bound.answered_at) == (PLAN, w.records[1].received_at)
    corrected = late.classified[1]
    assert (corrected.exchange_id, corrected.turn_id, corrected.reason) == (answer, turn, "matched")
    assert [encode(b) for b in w.match(w.records[0]).bindings] == [encode(bound)]


def test_time_is_the_records_own() -> None:
    """A turn that was served after the request cannot be what it answers."""
    w = World()
    w.exchange([ASK, said(PLAN), NO], SHORT)
    w.exchange([ASK], PLAN)
    assert w.bindings() == set()


def capture() -> Capture:
    return Capture(
        prompt_token_ids=Array.ints([1, 2]),
        response_token_ids=Array.ints([3]),
        logprobs=Array.floats([-0.1]),
        topk_ids=Array.ints([3, 4], [1, 2]),
        topk_logprobs=Array.floats([-0.1, -2.0], [1, 2]),
    )


def talked(w: World, turns: int, *, captured: bool) -> str:
    items: list[Item] = [ASK]
    name = ""
    for n in range(turns):
        name = w.exchange(items, f"{PLAN} {n}", match=False)
        w.match(replace(w.records[-1], capture=capture() if captured else None))
        items = [*items, said(f"{PLAN} {n}"), user(f"Question {n}?")]
    return name


def test_a_binding_carries_request_response_and_capture_of_its_turn() -> None:
    w = World()
    bound = w.binding(talked(w, 2, captured=True))
    line = json.loads(encode(bound))
    assert line["request"] == w.records[0].request
    assert line["response"] == w.records[0].response
    assert line["capture"] == json.loads(encode(capture()))
    assert [m.text for m in bound.prompt] == [ASK["content"]]


def test_the_window_of_earlier_turns_is_numbered_and_bounded() -> None:
    w = World(limits=Limits(earlier_turns=3))
    earlier = w.binding(talked(w, 7, captured=True)).earlier
    assert [(e.number, e.turn_id) for e in earlier] == [(1, "x0003"), (2, "x0004"), (3, "x0005")]
    assert json.loads(encode(earlier[0]))["request"] == w.records[2].request
    assert [m.text for m in earlier[0].prompt] == ["Question 1?"]
    assert earlier[0].received_at == w.records[2].received_at


def test_earlier_turns_beyond_the_byte_budget_keep_their_words_alone() -> None:
    whole = World()
    talked(whole, 4, captured=True)
    size = len(heavy(replace(whole.records[3], capture=capture())))
    w = World(limits=Limits(earlier_bytes=size))
    earlier = [json.loads(encode(e)) for e in w.binding(talked(w, 5, captured=True)).earlier]
    assert [e["request"] is None for e in earlier] == [True, True, False]
    assert all(e["reply"] and e["prompt"] for e in earlier)


def test_an_earlier_turn_without_a_capture_carries_no_request() -> None:
    """It can never be trained, so its words are enough."""
    w = World()
    earlier = json.loads(encode(w.binding(talked(w, 3, captured=False)).earlier[0]))
    assert (earlier["request"], earlier["capture"]) == (None, None)
