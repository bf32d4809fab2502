"""Who may be bound to whom: no id, shared ids, twins, tenants, tags."""

from __future__ import annotations

import pytest

from libs.contracts import TrafficRaw
from libs.dialects import partition_key
from libs.matching.identity import identify
from tests.unit.matching.talk import CRON, DIALECTS, FILES, PLAN, SHORT, Dialect, World, called, result, said, user

ASK = user("List what is in this folder.")
NO = user("No, keep the steps, just stop using bullet lists.")


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_client_without_any_id(dialect: Dialect) -> None:
    w = World()
    first = w.exchange([ASK], PLAN, dialect=dialect)
    second = w.exchange([ASK, said(PLAN), NO], SHORT, dialect=dialect)
    third = w.exchange([ASK, said(PLAN), NO, said(SHORT), user("Thanks.")], CRON, dialect=dialect)
    assert w.bindings() == {(first, second), (second, third)}
    bound = w.binding(second)
    assert (bound.rule, bound.reply, bound.next_state[0].text) == ("prefix", PLAN, NO["content"])
    assert [e.turn_id for e in w.binding(third).earlier] == [first]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_two_clients_with_the_same_opening_interleaved(dialect: Dialect) -> None:
    """The reply's own text tells them apart."""
    w = World()
    a1 = w.exchange([ASK], PLAN, dialect=dialect)
    b1 = w.exchange([ASK], FILES, dialect=dialect)
    b2 = w.exchange([ASK, said(FILES), NO], SHORT, dialect=dialect)
    a2 = w.exchange([ASK, said(PLAN), NO], CRON, dialect=dialect)
    assert w.bindings() == {(a1, a2), (b1, b2)}
    assert w.line(a2).session_id != w.line(b2).session_id


def test_twins_with_the_same_reply_too_are_left_alone() -> None:
    """Nothing tells them apart: a wrong binding is worse than none."""
    w = World()
    w.exchange([ASK], PLAN)
    w.exchange([ASK], PLAN)
    answer = w.exchange([ASK, said(PLAN), NO], SHORT)
    assert w.turn(answer) is None
    assert w.line(answer).reason == "ambiguous"


def test_twins_with_the_same_call_are_told_apart_by_its_id() -> None:
    w = World()
    a1 = w.exchange([ASK], called("chat_completions", "bash", {"command": "ls"}, "call_a"))
    b1 = w.exchange([ASK], called("chat_completions", "bash", {"command": "ls"}, "call_b"))
    turns = {}
    for mark in "ba":
        call = called("chat_completions", "bash", {"command": "ls"}, f"call_{mark}")
        name = w.exchange([ASK, *call, result("chat_completions", "README.md", f"call_{mark}")], PLAN)
        turns[mark] = w.turn(name)
    assert turns == {"a": a1, "b": b1}


def test_a_shared_prefix_of_any_length_never_merges_two_people() -> None:
    w = World()
    history = [ASK, said(PLAN), NO, said(SHORT), user("And now the second folder.")]
    mine = w.exchange(history, FILES)
    other = w.exchange(history, CRON)
    answer = w.exchange([*history, said(CRON), user("Thanks.")], SHORT)
    assert w.turn(answer) == other != mine


def test_the_same_system_prompt_for_different_users() -> None:
    w = World()
    mine = w.exchange([user("My name is Ann, what is in the folder?")], PLAN, system="You are helpful.")
    yours = w.exchange([user("My name is Bob, what is in the folder?")], PLAN, system="You are helpful.")
    answer = w.exchange([user("My name is Bob, what is in the folder?"), said(PLAN), NO], SHORT)
    assert w.turn(answer) == yours != mine


def test_another_tenant_and_another_scenario_are_never_touched() -> None:
    w = World()
    w.exchange([ASK], PLAN, tenant="a", headers={"x-reef-tag-session": "s"})
    w.exchange([ASK], PLAN, tenant="b", scenario="other", headers={"x-session-id": "s"})
    for headers in ({"x-reef-tag-session": "s"}, {"x-session-id": "s"}, {}):
        name = w.exchange([ASK, said(PLAN), NO], SHORT, tenant="b", headers=headers)
        assert w.turn(name) is None
        assert w.line(name).reason == "reply_not_served"


def test_no_rule_crosses_tags() -> None:
    w = World()
    w.exchange([ASK], PLAN, headers={"x-reef-tag-session": "one"})
    w.exchange([ASK], FILES)
    for text in (PLAN, FILES):
        name = w.exchange([ASK, said(text), NO], SHORT, headers={"x-reef-tag-session": "two"})
        assert w.turn(name) is None
    name = w.exchange([ASK, said(PLAN), NO], SHORT)
    assert w.turn(name) is None, "an untagged request does not reach into a tag either"


def test_a_tag_binds_in_order_within_it() -> None:
    w = World()
    tag = {"x-reef-tag-session": "s 1"}
    first = w.exchange([ASK], PLAN, headers=tag)
    second = w.exchange([ASK, said(PLAN), NO], SHORT, headers=tag)
    bound = w.binding(second)
    assert (bound.turn_id, bound.rule, bound.session_id) == (first, "tag", "tag:s 1")


@pytest.mark.parametrize("headers", [{"x-reef-tag-session": "s"}, {"x-session-id": "s"}])
def test_an_agent_that_keeps_its_history_itself(headers: dict[str, str]) -> None:
    """Without any history a request answers the newest main turn of its session."""
    w = World()
    first = w.exchange([ASK], PLAN, headers=headers)
    second = w.exchange([NO], SHORT, headers=headers)
    third = w.exchange([user("Thanks.")], CRON, headers=headers)
    assert w.bindings() == {(first, second), (second, third)}
    assert w.binding(second).confidence < 0.7


def test_previous_response_ids_chain() -> None:
    w = World()
    first = w.exchange([ASK], PLAN, dialect="responses")
    body = {"previous_response_id": f"resp_{first}"}
    second = w.exchange([NO], SHORT, dialect="responses", body=body)
    again = w.exchange([NO], SHORT, dialect="responses", body={"previous_response_id": "resp_unknown"})
    assert (w.turn(second), w.binding(second).rule) == (first, "hint")
    assert (w.turn(again), w.line(again).reason) == (None, "reply_not_served")


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (("a", "b:c"), ("a:b", "c")),
        (("a", "b/c"), ("a/b", "c")),
        (("a\x1fb", "c"), ("a", "b\x1fc")),
        (("", "x"), ("x", "")),
    ],
)
def test_ids_with_separators_never_collide(one: tuple[str, str], two: tuple[str, str]) -> None:
    def of(tenant: str, tag: str) -> TrafficRaw:
        w = World()
        w.exchange([ASK], PLAN, tenant=tenant, headers={"x-reef-tag-session": tag}, match=False)
        return w.records[0]

    assert identify(of(*one)).space != identify(of(*two)).space
    assert partition_key(of(*one)) != partition_key(of(*two))


def test_a_tag_and_a_hint_of_the_same_value_differ() -> None:
    w = World()
    w.exchange([ASK], PLAN, headers={"x-session-id": "s"})
    name = w.exchange([ASK, said(PLAN), NO], SHORT, headers={"x-reef-tag-session": "s"})
    assert w.turn(name) is None


def test_a_session_resumed_under_a_new_id_is_found_by_its_transcript() -> None:
    w = World()
    first = w.exchange([ASK], PLAN, headers={"x-session-id": "old"})
    second = w.exchange([ASK, said(PLAN), NO], SHORT, headers={"x-session-id": "new"})
    assert (w.turn(second), w.binding(second).rule, w.binding(second).session_id) == (first, "prefix", "hint:new")
