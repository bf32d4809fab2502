"""The PRM's prompt as data, and what counts as an answer."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.contracts import Message
from libs.feedback.answers import read_completion
from libs.feedback.judge import Question
from libs.feedback.prompts import PROMPT_VERSION, render
from tests.unit.feedback.make import question, turns

NONCE = "00112233445566aa"


def data_lines(asked: Question, **options: int) -> list[dict[str, object]]:
    messages, nonce = render(asked, **{"max_chars": 24_000} | options)
    lines = messages[1]["content"].split("\n")
    inside = lines[lines.index(f"BEGIN {nonce}") + 1 : lines.index(f"END {nonce}")]
    return [json.loads(line) for line in inside]


@settings(deadline=None)
@given(st.text(), st.text(), st.text())
def test_no_text_leaves_its_line(prompt: str, reply: str, said: str) -> None:
    asked = Question((Message("user", prompt),), reply, (Message("user", said), Message("tool", reply)))
    messages, nonce = render(asked, max_chars=24_000)
    assert len(data_lines(asked)) == 4
    body = messages[1]["content"]
    assert body.count(f"\nEND {nonce}\n") == 1
    assert body.startswith(f"BEGIN {nonce}\n")


@pytest.mark.parametrize(
    "token", ["<|im_start|>system", "<|eot_id|>", "[INST]", "</s>", "<start_of_turn>model", "<<SYS>>"]
)
def test_template_tokens_are_broken_up(token: str) -> None:
    messages, _ = render(question(f"thanks {token} now"), max_chars=24_000)
    assert token not in messages[1]["content"]
    assert token.strip("<>[]|/").split("|")[0][:4] in messages[1]["content"]  # the words stay to be read


def test_turns_are_numbered_and_the_answered_one_is_named() -> None:
    asked = question("no", earlier=turns("first", "second"))
    messages, _ = render(asked, max_chars=24_000)
    assert [(line["turn"], line["who"]) for line in data_lines(asked)] == [
        (1, "user"), (1, "assistant"), (2, "user"), (2, "assistant"), (3, "user"), (3, "assistant"), ("next", "user"),
    ]  # fmt: skip
    assert "Grade turn 3" in messages[1]["content"]
    assert "Turn 3 is the reply to grade" in messages[0]["content"]


def test_a_flood_keeps_both_ends_and_a_bound() -> None:
    flood = "begin " + "x" * 500_000 + " end"
    asked = question(flood, reply=flood, earlier=turns(flood, flood))
    text = json.dumps(data_lines(asked, max_chars=8_000))
    assert len(text) < 12_000
    assert text.count("begin ") == text.count(" end") == 4


def test_the_nonce_depends_on_every_word_and_on_the_vote() -> None:
    nonces = {render(question(words), max_chars=8_000, index=index)[1] for words in ("a", "b") for index in (0, 1)}
    assert len(nonces) == 4
    assert render(question("a"), max_chars=8_000) == render(question("a"), max_chars=8_000)


def test_the_version_names_the_prompts() -> None:
    assert re.fullmatch(r"prompts-[0-9a-f]{8}", PROMPT_VERSION)


def body(content: str, **choice: object) -> bytes:
    return json.dumps({"choices": [{"message": {"content": content}, **choice}], "usage": {"total_tokens": 7}}).encode()


def answer(**item: object) -> str:
    whole = {"turn": 1, "verdict": -1, "rejected": "", "preserved": "", "hint": "", "ground": ""} | item
    return json.dumps({"id": NONCE, "judgements": [whole]})


@pytest.mark.parametrize(
    "text",
    [
        answer(),
        f"Sure:\n```json\n{answer()}\n```",
        f"{answer(verdict=1)}\nOn reflection:\n{answer()}",
        f'{{"id": "other", "judgements": [{{"turn": 1, "verdict": 1}}]}} {answer()}',
        f'{answer()} {{"id": "other", "judgements": [{{"turn": 1, "verdict": 1}}]}}',
        f"<think>{answer(verdict=1)}</think>{answer()}",
        f"{{not json}} {answer()}",
    ],
)
def test_the_last_answer_with_the_nonce_counts(text: str) -> None:
    ballot = read_completion(body(text), NONCE)
    assert (ballot.abstained, ballot.verdict(1), ballot.tokens) == ("", -1, 7)


@pytest.mark.parametrize(
    "item",
    [
        {"verdict": 2}, {"verdict": "-1"}, {"verdict": True}, {"verdict": None}, {"verdict": -1.5},
        {"turn": "1"}, {"turn": True}, {"turn": None},
    ],
)  # fmt: skip
def test_a_value_of_the_wrong_kind_is_no_answer(item: dict[str, object]) -> None:
    assert read_completion(body(answer(**item)), NONCE).abstained == "unparsable"


@pytest.mark.parametrize(
    "items", ["[]", "{}", "null", "[3]", '[{"turn": 1, "verdict": 1}, {"turn": 1, "verdict": -1}]']
)
def test_judgements_that_say_nothing_or_two_things_are_no_answer(items: str) -> None:
    text = f'{{"id": "{NONCE}", "judgements": {items}}}'
    assert read_completion(body(text), NONCE).abstained == "unparsable"


def test_a_hint_with_a_secret_is_left_out_and_the_verdict_kept() -> None:
    ballot = read_completion(body(answer(hint="Sign with jane@example.org", rejected="the tone")), NONCE)
    assert (ballot.judgements[0].hint, ballot.judgements[0].rejected, ballot.verdict(1)) == ("", "the tone", -1)


@settings(deadline=None)
@given(st.binary())
def test_any_bytes_are_read_without_an_exception(data: bytes) -> None:
    assert read_completion(data, NONCE).abstained


@pytest.mark.parametrize("depth", [200, 5000])
def test_deep_nesting_is_no_answer(depth: int) -> None:
    assert read_completion(body("[" * depth + '{"a":' * depth), NONCE).abstained == "unparsable"
