"""Histories that come back changed: windows, rewritten replies, moving context."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest

from tests.unit.matching.talk import (
    CRON,
    DIALECTS,
    FILES,
    PLAN,
    SHORT,
    Dialect,
    Item,
    World,
    called,
    result,
    said,
    user,
)

ASK = user("List what is in this folder.")
NO = user("No, keep the steps, just stop using bullet lists.")


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("size", [2, 3, 4])
def test_a_window_that_drops_the_oldest_messages(dialect: Dialect, size: int) -> None:
    w = World()
    items = [ASK]
    names = [w.exchange(items, PLAN, dialect=dialect)]
    for n, text in enumerate([SHORT, FILES, CRON, f"{PLAN} Again.", f"{FILES} Again."]):
        items = [*items, said([PLAN, SHORT, FILES, CRON, f"{PLAN} Again."][n]), user(f"Next question number {n}.")]
        names.append(w.exchange(items[-size:], text, dialect=dialect))
    assert w.bindings() == set(pairwise(names))
    assert {w.binding(n).rule for n in names[4:]} == {"anchor"}
    assert len({w.line(n).session_id for n in names}) == 1


def test_common_short_replies_in_a_window_need_their_context() -> None:
    w = World()
    names = []
    for person in ("Ann", "Bob"):
        w.exchange([user(f"Hello, {person} here.")], "Hello!")
        names.append(
            w.exchange(
                [user(f"Hello, {person} here."), said("Hello!"), user(f"Add {person} to the list of readers.")], "Done."
            )
        )
    left = w.exchange([user("Add Ann to the list of readers."), said("Done."), user("Thanks a lot.")], "Welcome.")
    alone = w.exchange([said("Done."), user("Thanks a lot.")], "Welcome.")
    assert w.turn(left) == names[0]
    assert w.turn(alone) is None, "a common reply alone says nothing"


Rewrite = Callable[[str], str]
REWRITES: dict[str, Rewrite] = {
    "trimmed": lambda t: t.strip(),
    "white space": lambda t: "\n\n  " + t.replace(" ", "  ") + "\n",
    "reasoning removed": lambda t: t.split("</think>")[-1],
    "noise removed": lambda t: t.replace("\x00", "").replace("\ufffd", ""),
    "normal form": lambda t: t.replace("é", "e\u0301"),
    "byte order mark": lambda t: "\ufeff" + t,
}


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("name", REWRITES)
def test_a_reply_that_comes_back_rewritten(dialect: Dialect, name: str) -> None:
    w = World()
    served = "<think>\nI look first.\n</think>\n\n Café \x00answer\ufffd: the steps stay as they were.  \n"
    first = w.exchange([ASK], served, dialect=dialect)
    second = w.exchange([ASK, said(REWRITES[name](served)), NO], SHORT, dialect=dialect)
    assert (w.turn(second), w.binding(second).rule) == (first, "prefix")


def test_reasoning_in_its_own_field_or_block() -> None:
    w = World()
    first = w.exchange([ASK], [{**said(PLAN), "reasoning_content": "I look first."}])
    moved = {"role": "assistant", "content": f"<think>I look first.</think>{PLAN}"}
    second = w.exchange([ASK, moved, NO], SHORT)
    blocks = {"role": "assistant", "content": [{"type": "thinking", "thinking": "x"}, {"type": "text", "text": PLAN}]}
    third = w.exchange([ASK, blocks, NO, said(SHORT), user("Thanks.")], CRON)
    assert (w.turn(second), w.turn(third)) == (first, second)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_arguments_re_spaced_re_ordered_and_ids_renamed(dialect: Dialect) -> None:
    w = World()
    served = called(dialect, "edit", {"path": "a.py", "line": 1.0, "text": "x  y"}, "call_1")
    first = w.exchange([ASK], served, dialect=dialect)
    back = called(dialect, "edit", {"text": "x  y", "line": 1, "path": "a.py"}, "other_9")
    if dialect == "chat_completions":
        function = back[0]["tool_calls"][0]["function"]
        function["arguments"] = function["arguments"].replace(":", " :\n")
    second = w.exchange([ASK, *back, result(dialect, "ok", "other_9")], PLAN, dialect=dialect)
    assert w.turn(second) == first


def test_other_arguments_are_another_reply() -> None:
    w = World()
    w.exchange([ASK], called("chat_completions", "edit", {"path": "a.py", "line": 1}))
    back = called("chat_completions", "edit", {"path": "a.py", "line": 2})
    assert w.turn(w.exchange([ASK, *back, result("chat_completions", "ok")], PLAN)) is None


def test_consecutive_user_messages_merged_and_split() -> None:
    w = World()
    first = w.exchange([ASK, user("And the notes.")], "Done.")
    merged = user(ASK["content"] + "\n\nAnd the notes.")
    second = w.exchange([merged, said("Done."), NO], SHORT)
    assert (w.turn(second), w.binding(second).rule) == (first, "prefix")


@pytest.mark.parametrize("kept", [[], [{"type": "text", "text": "[image removed]"}]])
def test_images_shrunk_or_dropped(kept: list[Item]) -> None:
    def picture(data: str) -> Item:
        return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}

    w = World()
    words = {"type": "text", "text": "What is in this picture of the folder?"}
    first = w.exchange([{"role": "user", "content": [words, picture("AAAA" * 99)]}], PLAN)
    second = w.exchange([{"role": "user", "content": [words, *kept]}, said(PLAN), NO], SHORT)
    shrunk = [{"role": "user", "content": [words, picture("BBBB")]}, said(PLAN), NO, said(SHORT), user("Thanks.")]
    assert w.turn(second) == first
    assert w.turn(w.exchange(shrunk, CRON)) == second


def test_another_picture_with_the_same_words_is_another_turn() -> None:
    w = World()

    def asked(data: str) -> Item:
        part = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}
        return {"role": "user", "content": [{"type": "text", "text": "What is this?"}, part]}

    w.exchange([asked("AAAA")], "A cat.")
    dog = w.exchange([asked("BBBB")], "A cat.")
    assert w.turn(w.exchange([asked("BBBB"), said("A cat."), NO], SHORT)) == dog


def test_very_long_messages_and_odd_characters() -> None:
    w = World()
    long = "x" * 500_000 + " \ud800 \x00 end"
    first = w.exchange([user(long)], long)
    assert w.turn(w.exchange([user(long), said(long), NO], SHORT)) == first


@pytest.mark.parametrize("reply", ["\x00\x01", "\ufffd", ""])
def test_a_history_of_replies_without_anything_visible_says_so(reply: str) -> None:
    w = World()
    w.exchange([ASK], reply)
    name = w.exchange([ASK, said(reply), NO], SHORT)
    assert (w.turn(name), w.line(name).reason) == (None, "empty_reply")


def test_file_maps_and_system_prompts_that_change_on_every_call() -> None:
    w = World()
    names = []
    items: list[Item] = []
    for n, text in enumerate([PLAN, SHORT, FILES]):
        files = user(f"Here are the files in the folder now:\n{'file.py ' * n}and the notes.")
        items = [*items, user(f"Question number {n} about it?")]
        names.append(w.exchange([files, said("Ok."), *items], text, system=f"It is {n} o'clock."))
        items = [*items, said(text)]
    assert w.bindings() == set(pairwise(names))


def test_text_that_clients_put_in_themselves_is_passed_over() -> None:
    """The newest assistant message is the client's own, known from before: the reply above it is answered."""
    w = World()
    own = [user("I added these files."), said("Ok, any changes will be to those files.")]
    first = w.exchange([*own, ASK], PLAN)
    second = w.exchange([ASK, said(PLAN), *own, NO], SHORT)
    assert w.turn(second) == first
    assert [m.text for m in w.binding(second).next_state][-1] == NO["content"]


def test_an_unknown_newest_reply_is_not_passed_over() -> None:
    w = World()
    w.exchange([ASK], PLAN)
    name = w.exchange([ASK, said(PLAN), NO, said("Ok, never served."), user("Thanks.")], SHORT)
    assert (w.turn(name), w.line(name).reason) == (None, "reply_not_served")


def test_a_short_reply_that_was_served_before_is_no_filler_of_the_client() -> None:
    """Its words come again as a reply that is read late: the reply above it is not taken for the answered one."""
    w = World()
    done, no = "Done.", user("No, stop using lists.")
    w.exchange([ASK], PLAN)
    w.exchange([ASK, said(PLAN), no], done)
    third = w.exchange([said(PLAN), no, said(done), no], FILES)
    fourth = w.exchange([said(done), no, said(FILES), no], done, match=False)
    fifth = w.exchange([said(FILES), no, said(done), no], SHORT)
    assert w.turn(fifth) is None
    w.match(w.records[3])
    assert {a for a, b in w.bindings() if b == fifth} <= {fourth}
    assert w.turn(fourth) == third


def test_a_trailing_context_block_that_moves_to_the_end() -> None:
    w = World()
    context = user("Open files right now:\nREADME.md with three lines\nsrc/main.py with one line")
    first = w.exchange([ASK, context], "Done.")
    second = w.exchange([ASK, said("Done."), NO, context], SHORT)
    assert w.turn(second) == first
    assert [m.text for m in w.binding(second).next_state] == [NO["content"]], "context is not the person's words"


def test_stamps_and_reminders_on_the_newest_message_only() -> None:
    w = World()
    first = w.exchange(
        [user("[Sun 2026-11-29 13:34 UTC] List the folder and its notes, please.\n\nReply with whole files.")],
        "Ok.",
    )
    asked = user("[Sun 2026-11-29 13:35 UTC] No lists, please.\n\nReply with whole files, in English.")
    second = w.exchange([user("List the folder and its notes, please."), said("Ok."), asked], SHORT)
    assert w.turn(second) == first


def test_old_tool_results_cleared() -> None:
    w = World()
    call = called("chat_completions", "bash", {"command": "ls"})
    w.exchange([ASK], call)
    first = w.exchange([ASK, *call, result("chat_completions", "a long listing")], PLAN)
    second = w.exchange([ASK, *call, result("chat_completions", "[cleared]"), said(PLAN), NO], SHORT)
    assert w.turn(second) == first


@pytest.mark.parametrize("dialect", DIALECTS)
def test_several_tool_results_after_one_reply(dialect: Dialect) -> None:
    w = World()
    calls = [*called(dialect, "bash", {"command": "ls"}, "c1"), *called(dialect, "read", {"path": "a"}, "c2")]
    if dialect == "messages":
        calls = [{"role": "assistant", "content": calls[0]["content"] + calls[1]["content"]}]
    elif dialect == "chat_completions":
        calls = [{**calls[0], "tool_calls": calls[0]["tool_calls"] + calls[1]["tool_calls"]}]
    first = w.exchange([ASK], calls, dialect=dialect)
    results = [result(dialect, "two files", "c2"), result(dialect, "one line", "c1")]
    second = w.exchange([ASK, *calls, *results], PLAN, dialect=dialect)
    assert w.turn(second) == first
    assert [(m.role, m.text) for m in w.binding(second).next_state] == [("tool", "two files"), ("tool", "one line")]
