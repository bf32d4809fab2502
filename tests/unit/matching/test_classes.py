"""Side calls, compactions, sub-agents and machine-written text beside main turns."""

from __future__ import annotations

import pytest

from libs.matching.patterns import instruction_kind, person_words, placeholder
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
SUMMARISE = user(
    "Your task is to create a detailed summary of the conversation so far.\n\n"
    "- Do NOT call any tools.\n- Respond with the summary only."
)
SUMMARY = "The person asked about the folder.\nThe notes file stays where it is.\nNext: answer the newest question."
NAMED = {"x-session-id": "s"}

# Written for this test: requests as agents make them for themselves.
SIDE: dict[str, tuple[str, list[Item]]] = {
    "title, system prompt": (
        "You generate titles. Output only a short title for the conversation, at most 50 characters.",
        [user("Please name it."), ASK],
    ),
    "title, transcript in the prompt": (
        "",
        [
            user(
                "### Task:\nGenerate a concise 3-5 word title with an emoji for the chat.\n### Chat:\n"
                f"USER: {ASK['content']}\nASSISTANT: {PLAN}"
            )
        ],
    ),
    "follow-ups": (
        "",
        [user("### Task:\nSuggest 3-5 relevant follow-up questions the user might ask.\nReturn JSON only.")],
    ),
    "new topic": (
        "Analyze if this message indicates a new conversation topic. Respond with JSON only.",
        [user("And what about the weather?")],
    ),
    "commit message": ("You write commit messages. Reply with one line only, generated from the diff.", [user("+ a")]),
    "memory flush": (
        "",
        [ASK, said(PLAN), user("Memory flush: store durable memories of this session now. Reply NO_REPLY if nothing.")],
    ),
    "memory extraction fork": (
        "",
        [
            ASK,
            said(PLAN),
            user("Extract durable facts about the user worth remembering. Output JSON only, never prose."),
        ],
    ),
    "suggestion fork": (
        "",
        [ASK, said(PLAN), user("Suggest what the user might type next. Reply with the suggestion only, 2-8 words.")],
    ),
    "review fork": (
        "",
        [ASK, said(PLAN), user("Review the conversation above. You must list skills worth saving. Return JSON only.")],
    ),
    "heartbeat": ("", [ASK, said(PLAN), user("Heartbeat: check HEARTBEAT.md. If nothing is due, reply HEARTBEAT_OK.")]),
    "is it over": (
        "You judge whether the user is done. Answer JSON.",
        [
            ASK,
            said(PLAN),
            user('Is the conversation finished? Reply with {"done": true} or {"done": false} only.'),
        ],
    ),
    "one word": (
        "",
        [ASK, said(PLAN), user("Has the user's request been fulfilled? Answer with a single word: yes or no.")],
    ),
    "who speaks": (
        "",
        [
            ASK,
            said(PLAN),
            user("Given the above: should the assistant respond? Reply with exactly one word, yes or no."),
        ],
    ),
    "is the user content": (
        "",
        [ASK, said(PLAN), user('Decide whether the user is satisfied. Respond in JSON: {"satisfied": true}.')],
    ),
    "another question": (
        "",
        [ASK, said(PLAN), user("Determine if the user is asking a follow-up.\nOutput true or false, nothing else.")],
    ),
    "memo for a successor": (
        "",
        [ASK, said(PLAN), user("Condense the dialogue so far into a memo for a successor agent.")],
    ),
    "hand-off": (
        "",
        [ASK, said(PLAN), user("Compress the conversation so far into a handoff note for the next agent to continue.")],
    ),
}


@pytest.mark.parametrize("tools", [True, False])
@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("name", SIDE)
def test_side_calls(name: str, dialect: Dialect, tools: bool) -> None:
    """The side call is concurrent with the main call and binds nothing, and the main turn is answered all the same."""
    if tools and name in ("title, system prompt", "commit message", "new topic"):
        pytest.skip("known by the service role in the system prompt, which goes without tools")
    system, items = SIDE[name]
    w = World()
    first = w.exchange([ASK], PLAN, dialect=dialect, headers=NAMED)
    side = w.exchange(items, FILES, dialect=dialect, system=system, tools=tools, headers=NAMED)
    second = w.exchange([ASK, said(PLAN), NO], SHORT, dialect=dialect, headers=NAMED)
    assert w.line(side).exchange_class in ("side", "compaction")
    assert (w.turn(side), w.turn(second)) == (None, first)
    assert w.line(second).exchange_class == "main"


PERSON = [
    "Thanks. Now write a title for it.",
    "Summarize the conversation so far.",
    "Summarise this for my boss, and keep it short.",
    "Can you review this chat function? It must never return null.",
    "Save it to memory.txt, please.",
    "ping",
    "Generate three questions about the text.",
    "What would you suggest next?",
    "Here is the transcript of my meeting. What was decided?",
    "Remember that I like short answers, and never use lists.",
    "Is the conversation over?",
    "Is the task done? Answer yes or no.",
    "Has the issue been resolved? Reply yes or no only, please.",
    "Is the user able to delete the file? Answer yes or no only.",
    "Is this conversation being saved? Just say yes or no.",
    "Check whether the user is logged in. Return JSON from the route.",
    'Implement a node: decide if the user is asking for a refund. Return JSON {"refund": true}.',
    "Write a function that decides whether the user wants to continue. It must return only true or false.",
    'Add an endpoint that returns JSON {"done": true} once the user has completed the session.',
    "Is the chat widget finished? Return JSON from the handler instead of XML.",
    "Condense the second paragraph.",
]


@pytest.mark.parametrize("words", PERSON)
@pytest.mark.parametrize("tools", [True, False])
def test_what_people_say_is_a_main_turn(words: str, tools: bool) -> None:
    w = World()
    first = w.exchange([ASK], PLAN, tools=tools)
    second = w.exchange([ASK, said(PLAN), user(words)], SHORT, tools=tools)
    assert (w.turn(second), w.line(second).exchange_class) == (first, "main")
    assert w.binding(second).next_state[0].text == words


def test_a_chat_client_sends_no_tools_on_main_turns() -> None:
    w = World()
    first = w.exchange([ASK], PLAN, tools=False)
    assert w.turn(w.exchange([ASK, said(PLAN), NO], SHORT, tools=False)) == first


def test_what_the_client_declares_counts() -> None:
    w = World()
    side = w.exchange([ASK], PLAN, headers={"x-turn-type": "side"})
    main = w.exchange(SIDE["follow-ups"][1], PLAN, headers={"x-turn-type": "main"})
    assert (w.line(side).exchange_class, w.line(side).reason) == ("side", "declared_side")
    assert w.line(main).exchange_class == "main"


@pytest.mark.parametrize("items", [[user("ping")], [user("quota")]])
def test_cache_pings_and_quota_probes(items: list[Item]) -> None:
    w = World()
    assert w.line(w.exchange(items, "pong", body={"max_tokens": 1})).reason == "probe_call"
    assert w.line(w.exchange(items, "pong")).exchange_class == "main"


def test_token_counts_and_unknown_paths_generate_nothing() -> None:
    w = World()
    w.exchange([ASK], PLAN, match=False)
    from msgspec.structs import replace

    for path in ("/v1/messages/count_tokens", "/v1/embeddings"):
        outcome = w.match(replace(w.records[0], path=path, exchange_id=path))
        assert (outcome.classified[0].exchange_class, outcome.bindings) == ("side", ())


def test_one_max_token_alone_is_no_side_call() -> None:
    w = World()
    w.exchange([ASK], PLAN)
    assert w.line(w.exchange([ASK, said(PLAN), NO], "S", body={"max_tokens": 1})).exchange_class == "main"


# --- sub-agents ---------------------------------------------------------------------------------------------------
TASK = "Count the files in this folder and report the number of them."


@pytest.mark.parametrize("headers", [{}, NAMED])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_delegated_task_is_a_side_thread(dialect: Dialect, headers: dict[str, str]) -> None:
    """No header says so: its opening is an argument of the parent's call, and its tools differ."""
    w = World()
    call = called(dialect, "task", {"prompt": TASK})
    parent = w.exchange([ASK], call, dialect=dialect, headers=headers)
    sub = [user(f"<system-reminder>\nbe brief\n</system-reminder>\n{TASK}")]
    one = w.exchange(sub, called(dialect, "bash", {"command": "ls"}), dialect=dialect, headers=headers, system="Sub.")
    more = [*sub, *called(dialect, "bash", {"command": "ls"}), result(dialect, "three files")]
    two = w.exchange(more, "There are three files.", dialect=dialect, headers=headers, system="Sub.")
    back = w.exchange([ASK, *call, result(dialect, "There are three files.")], PLAN, dialect=dialect, headers=headers)
    assert [w.line(n).exchange_class for n in (parent, one, two, back)] == ["main", "side", "side", "main"]
    assert w.bindings() == {(parent, back)}


def test_a_twin_whose_words_the_model_repeated_is_no_sub_agent() -> None:
    w = World()
    w.exchange([user(TASK)], called("chat_completions", "search", {"query": TASK}))
    assert w.line(w.exchange([user(TASK)], PLAN)).exchange_class == "main"


@pytest.mark.parametrize("name", ["x-claude-code-agent-id", "x-parent-session-id", "x-openai-subagent"])
def test_a_sub_agent_by_header_shares_the_session(name: str) -> None:
    w = World()
    first = w.exchange([ASK], PLAN, headers=NAMED)
    sub = w.exchange([user(TASK)], FILES, headers={**NAMED, name: "a1"})
    second = w.exchange([ASK, said(PLAN), NO], SHORT, headers=NAMED)
    assert (w.line(sub).reason, w.turn(second)) == ("sub_agent", first)


def test_finished_background_work_comes_back_as_user_text() -> None:
    """It answers the newest reply, and none of it counts as the person's words."""
    w = World()
    first = w.exchange([ASK], PLAN)
    news = user("<task-notification>\nTask a1 completed.\nSummary: three files\n</task-notification>")
    second = w.exchange([ASK, said(PLAN), news], SHORT)
    assert (w.turn(second), w.line(second).exchange_class) == (first, "main")
    assert [m.role for m in w.binding(second).next_state] == ["system"]


# --- compaction ---------------------------------------------------------------------------------------------------
def resumed(shape: str, summary: str, tail: list[Item], newest: Item) -> list[Item]:
    text = f"The conversation was compacted into this summary:\n\n{summary}"
    if shape == "assistant":
        return [said(summary), *tail, newest]
    if shape == "acknowledged":
        return [user(text), said("Understood."), *tail, newest]
    if shape == "merged":
        return [*tail, user(f"{text}\n\n{newest['content']}")]
    if shape == "last":
        return [*tail, newest, user(text)]
    return [user(text), *tail, newest]


@pytest.mark.parametrize("tail", [0, 2])
@pytest.mark.parametrize("shape", ["user", "assistant", "acknowledged", "merged", "last"])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_session_goes_on_across_a_compaction(dialect: Dialect, shape: str, tail: int) -> None:
    w = World()
    history = [ASK, said(PLAN), NO, said(SHORT)]
    w.exchange([ASK], PLAN, dialect=dialect)
    last = w.exchange(history[:3], SHORT, dialect=dialect)
    compaction = w.exchange([*history, SUMMARISE], SUMMARY, dialect=dialect)
    newest = user("Thanks, and how do I run it every hour?")
    after = resumed(shape, SUMMARY, history[len(history) - tail :], newest)
    second = w.exchange(after, CRON, dialect=dialect)
    assert (w.line(compaction).exchange_class, w.turn(compaction)) == ("compaction", None)
    assert w.turn(second) == last
    assert w.binding(second).rule == ("bridge" if not tail else w.binding(second).rule)
    assert w.line(second).session_id == w.line(last).session_id
    assert any(newest["content"] in m.text for m in w.binding(second).next_state)
    third = w.exchange([*after, said(CRON), NO], FILES, dialect=dialect)
    assert w.turn(third) == (second if shape != "last" else w.turn(third))


def test_a_resumed_history_that_reads_like_the_wish_for_a_summary() -> None:
    """Its newest message holds the served summary, headings and orders included."""
    w = World()
    last = w.exchange([ASK], PLAN)
    summary = (
        "# Context of the conversation\n- IMPORTANT: never use lists, respond with prose only\n- the notes stay here"
    )
    w.exchange([ASK, said(PLAN), SUMMARISE], summary)
    resume = user(f"Your task goes on. You must use this conversation summary:\n\n{summary}")
    after = w.exchange([ASK, resume], SHORT)
    assert (w.line(after).exchange_class, w.turn(after)) == ("main", last)
    again = w.exchange([ASK, resume, said(SHORT), SUMMARISE], summary)
    assert w.line(again).exchange_class == "compaction"


def test_a_compaction_asked_for_in_one_plain_sentence() -> None:
    w = World()
    ask = user("Summarize the conversation so far in a few sentences, so that it can go on from your summary.")
    first = w.exchange([user("How do I plan a trip?")], PLAN, tools=False)
    summary = w.exchange([user("How do I plan a trip?"), said(PLAN), ask], CRON, tools=False)
    after = w.exchange([user(CRON), user("No, stop using lists.")], SHORT, tools=False)
    assert w.line(summary).exchange_class == "compaction"
    assert w.turn(after) == first
    person = w.exchange([user("Hi."), said(FILES), user("Can you summarize what we said so far?")], SHORT, tools=False)
    assert w.line(person).exchange_class == "main"


def test_three_compactions_in_a_row() -> None:
    w = World()
    last = w.exchange([ASK], PLAN)
    history = [ASK, said(PLAN)]
    summary = ""
    for n in range(3):
        summary = SUMMARY.replace("\n", f" {n}.\n")
        w.exchange([*history, SUMMARISE], summary)
        history = resumed("user", summary, [], SUMMARISE)[:-1]
    second = w.exchange([*history, NO], SHORT)
    assert (w.turn(second), w.binding(second).rule) == (last, "bridge")


def test_a_repeated_tail_after_a_summary() -> None:
    w = World()
    w.exchange([ASK], PLAN)
    last = w.exchange([ASK, said(PLAN), NO], SHORT)
    w.exchange([ASK, said(PLAN), NO, said(SHORT), SUMMARISE], SUMMARY)
    tail = [NO, said(SHORT)]
    after = [user(f"Here is a summary of it:\n{SUMMARY}"), *tail, *tail, user("Thanks.")]
    assert w.turn(w.exchange(after, CRON)) == last


def test_a_compaction_of_a_written_out_transcript() -> None:
    w = World()
    last = w.exchange([ASK], PLAN)
    written = f"<conversation>\nUser: {ASK['content']}\nAssistant: {PLAN}\n</conversation>"
    call = w.exchange(
        [user(written)], SUMMARY, system="You summarise conversations. Output only the summary.", tools=False
    )
    second = w.exchange(resumed("user", SUMMARY, [], NO), SHORT)
    assert w.line(call).exchange_class == "compaction"
    assert w.turn(second) == last


def test_a_dialogue_that_is_condensed_under_other_names_is_bridged() -> None:
    w = World()
    last = w.exchange([ASK], PLAN)
    written = f"USER: {ASK['content']}\nAGENT: {PLAN}\n\nCondense the dialogue above into a memo for a successor agent."
    call = w.exchange([user(written)], SUMMARY, system="Condense the dialogue.", tools=False)
    second = w.exchange(resumed("user", SUMMARY, [], NO), SHORT)
    assert w.line(call).exchange_class == "compaction"
    assert w.turn(second) == last


def test_a_summary_of_something_never_served_binds_nothing() -> None:
    w = World()
    w.exchange([user(f"<conversation>\nUser: hi\nAssistant: {FILES}\n</conversation>"), SUMMARISE], SUMMARY)
    after = w.exchange(resumed("user", SUMMARY, [], NO), SHORT)
    assert (w.turn(after), w.line(after).reason) == (None, "summary_without_turn")


# --- machine-written text ---------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("<system-reminder>\nx\n</system-reminder>\nStop it.", "Stop it."),
        ("<environment_context>\n<cwd>/a</cwd>\n</environment_context>", ""),
        ("[Sun 2026-11-29 13:34 UTC] Stop it.", "Stop it."),
        ("[Request interrupted by user]", ""),
        ("[SYSTEM NOTIFICATION - NOT USER INPUT]\nTask done.", ""),
        ("[Old tool result content cleared]", ""),
        ("Look at <b>this</b> and <my-element>that</my-element>", "Look at <b>this</b> and"),
        ("[1, 2, 3] is the list, sort it", "[1, 2, 3] is the list, sort it"),
        ("  indented\n    code", "  indented\n    code"),
        ("System design is hard.", "System design is hard."),
        ("Note: the date is wrong in my file", "Note: the date is wrong in my file"),
    ],
)
def test_words_of_a_person(text: str, left: str) -> None:
    assert person_words(text).strip() == left.strip()


def test_placeholders() -> None:
    assert placeholder("(no content)") and placeholder("Request interrupted by user")
    assert not placeholder("Continue reading the file, please.") and not placeholder("No, the response is wrong.")


@pytest.mark.parametrize("text", PERSON)
def test_people_are_no_programs(text: str) -> None:
    assert instruction_kind(text, sure=False) is None
