"""The same request again: retries, regenerations, edits, and what only looks like them."""

from __future__ import annotations

import pytest

from tests.unit.matching.talk import (
    CRON,
    DIALECTS,
    FILES,
    PLAN,
    SHORT,
    Dialect,
    World,
    called,
    result,
    said,
    user,
)

ASK = user("List what is in this folder.")
NO = user("No, keep the steps, just stop using bullet lists.")
OPEN = [ASK, said(PLAN), NO]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_same_request_after_a_failure(dialect: Dialect) -> None:
    w = World()
    first = w.exchange([ASK], PLAN, dialect=dialect)
    failed = w.exchange(OPEN, None, dialect=dialect, outcome="upstream_error")
    again = w.exchange(OPEN, SHORT, dialect=dialect, headers={"x-stainless-retry-count": "1"})
    last = w.exchange([*OPEN, said(SHORT), user("Thanks.")], CRON, dialect=dialect)
    assert w.line(again).exchange_class == "retry"
    assert (w.turn(failed), w.turn(again), w.turn(last)) == (first, first, again)
    assert (w.binding(failed).repeat_of, w.binding(again).repeat_of) == (None, failed), "one turn"


def test_after_a_disconnect_the_partial_reply_is_no_regeneration() -> None:
    w = World()
    w.exchange([ASK], PLAN)
    w.exchange(OPEN, "Read the file,", outcome="client_gone")
    again = w.exchange(OPEN, SHORT)
    assert w.line(again).exchange_class == "retry"
    assert not w.implicit(again)


def test_after_a_timeout_the_first_is_still_running() -> None:
    """The first attempt's record says that it was done after the second had begun."""
    w = World()
    w.exchange([ASK], PLAN)
    w.exchange(OPEN, SHORT, seconds=60.0)
    again = w.exchange(OPEN, CRON)
    assert w.line(again).exchange_class == "retry"


def test_fail_over_to_another_model() -> None:
    w = World()
    w.exchange([ASK], PLAN)
    w.exchange(OPEN, None, outcome="upstream_error", body={"model": "large"})
    again = w.exchange(OPEN, SHORT, body={"model": "small", "temperature": 0})
    assert w.line(again).exchange_class == "retry"


def test_a_retry_count_is_believed() -> None:
    w = World()
    w.exchange([ASK], PLAN)
    w.exchange(OPEN, SHORT)
    again = w.exchange(OPEN, CRON, headers={"x-stainless-retry-count": "2"})
    assert w.line(again).exchange_class == "retry"


def test_two_equal_tool_results_are_no_retry() -> None:
    w = World()
    items = [ASK]
    names = []
    for n in range(3):
        call = called("chat_completions", "bash", {"command": "make check"}, f"c{n}")
        names.append(w.exchange(items, call))
        items = [*items, *call, result("chat_completions", "ok", f"c{n}")]
    names.append(w.exchange(items, PLAN))
    assert [w.line(n).exchange_class for n in names] == ["main"] * 4
    assert [w.turn(n) for n in names[1:]] == names[:3]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_regeneration_rejects_the_delivered_reply(dialect: Dialect) -> None:
    w = World()
    first = w.exchange([ASK], PLAN, dialect=dialect)
    rejected = w.exchange(OPEN, SHORT, dialect=dialect)
    again = w.exchange(OPEN, CRON, dialect=dialect)
    assert w.line(again).exchange_class == "regeneration"
    assert w.turn(again) == first
    implicit = w.implicit(again)
    assert [(b.turn_id, b.evidence, b.next_state, b.reply) for b in implicit] == [(rejected, "regeneration", [], SHORT)]


def test_an_opening_without_ids_is_no_regeneration() -> None:
    """Two people may open with the same words."""
    w = World()
    w.exchange([ASK], PLAN)
    again = w.exchange([ASK], FILES)
    assert w.line(again).exchange_class == "main"
    named = {"x-session-id": "s"}
    w.exchange([NO], PLAN, headers=named)
    assert w.line(w.exchange([NO], FILES, headers=named)).exchange_class == "regeneration"


def test_an_edited_message_is_a_branch() -> None:
    w = World()
    named = {"x-session-id": "s"}
    first = w.exchange([ASK], PLAN, headers=named)
    dropped = w.exchange(OPEN, SHORT, headers=named)
    edited = w.exchange([ASK, said(PLAN), user("Use numbers instead.")], CRON, headers=named)
    assert (w.line(edited).exchange_class, w.turn(edited)) == ("branch", first)
    assert [(b.turn_id, b.evidence) for b in w.implicit(edited)] == [(dropped, "branch")]


def test_a_fork_under_another_id_rejects_nothing() -> None:
    w = World()
    first = w.exchange([ASK], PLAN, headers={"x-session-id": "s"})
    w.exchange(OPEN, SHORT, headers={"x-session-id": "s"})
    fork = w.exchange([ASK, said(PLAN), user("Use numbers.")], CRON, headers={"x-session-id": "f"})
    assert (w.turn(fork), w.line(fork).exchange_class, w.implicit(fork)) == (first, "main", [])


def test_a_length_stop_that_the_client_leaves_out() -> None:
    w = World()
    w.exchange([ASK], PLAN)
    cut = w.exchange(OPEN, SHORT, finish="length")
    after = w.exchange([*OPEN, user("You stopped too early.")], CRON)
    assert w.turn(after) == cut
    assert [m.text for m in w.binding(after).next_state] == ["You stopped too early."]


def test_a_partial_reply_resent_with_continue() -> None:
    w = World()
    w.exchange([ASK], PLAN)
    cut = w.exchange(OPEN, SHORT[:40], outcome="client_gone")
    after = w.exchange([*OPEN, said(SHORT[:40]), user("continue")], CRON)
    assert w.turn(after) == cut


def test_a_partial_reply_that_the_client_and_the_gateway_cut_differently() -> None:
    """The gateway saw more than the client kept: whole lines of it are enough."""
    w = World()
    text = "First line of the long answer.\nSecond line of the long answer.\nThird line of it, and more"
    w.exchange([ASK], PLAN)
    cut = w.exchange(OPEN, text, outcome="client_gone")
    after = w.exchange([*OPEN, said(text[:60]), user("continue")], CRON)
    assert (w.turn(after), w.binding(after).rule) == (cut, "anchor")


def test_two_user_messages_in_a_row_after_a_failed_call() -> None:
    w = World()
    first = w.exchange([ASK], PLAN)
    w.exchange(OPEN, None, outcome="upstream_error")
    after = w.exchange([*OPEN, user("Are you there?")], SHORT)
    assert w.turn(after) == first
    assert [m.text for m in w.binding(after).next_state] == [NO["content"], "Are you there?"]


def test_a_prefilled_answer_comes_back_as_one() -> None:
    w = World()
    first = w.exchange([ASK, said("Here is the plan")], " I would follow: read, list, write a summary.")
    after = w.exchange([ASK, said("Here is the plan I would follow: read, list, write a summary."), NO], SHORT)
    assert w.turn(after) == first


def test_empty_choices_bind_nothing_and_break_nothing() -> None:
    w = World()
    first = w.exchange([ASK], PLAN)
    for response in ({"choices": []}, {"choices": None}, None, {"choices": [{"message": {"content": ""}}]}, [], "oops"):
        empty = w.exchange(OPEN, None, response=response)
        assert w.turn(empty) == first


def test_any_of_several_choices_can_be_the_one_that_goes_on() -> None:
    w = World()
    first = w.exchange([ASK], [said(PLAN), said(FILES)])
    second = w.exchange([ASK, said(FILES), NO], SHORT)
    assert w.turn(second) == first


def test_a_reply_is_never_bound_to_its_own_echo() -> None:
    """The reply repeats what the request already held, and the request comes again."""
    w = World()
    w.exchange([ASK], PLAN)
    w.exchange(OPEN, PLAN)
    again = w.exchange(OPEN, PLAN)
    assert w.turn(again) == "x0001"
    assert all(turn != answer for turn, answer in w.bindings())


@pytest.mark.parametrize("headers", [{}, {"x-session-id": "s"}])
def test_without_a_name_an_equal_history_may_be_another_persons(headers: dict[str, str]) -> None:
    """A second person sends the first one's opening and reply along (an example) and goes on in another way."""
    w = World()
    first = w.exchange([ASK], PLAN, headers=headers)
    answered = w.exchange(OPEN, SHORT, headers=headers)
    other = w.exchange([ASK, said(PLAN), user("Write a haiku about rain.")], CRON, headers=headers)
    assert (w.turn(answered), w.turn(other)) == (first, first)
    named = bool(headers)
    assert w.line(other).exchange_class == ("branch" if named else "main")
    assert [b.turn_id for b in w.implicit(other)] == ([answered] if named else [])
