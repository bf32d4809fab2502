"""Messages as clients send them, rendered by a template that only knows strings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from libs.learning.engine.chat import ChatTokenizer, PromptError, plain_message

CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at": "Köln"}'}}


@pytest.fixture(scope="module")
def tokenizer(model_dir: Path) -> ChatTokenizer:
    return ChatTokenizer(model_dir)


def rendered(tokenizer: ChatTokenizer, *messages: dict[str, Any]) -> str:
    return "".join(tokenizer.token(i) for i in tokenizer.prompt_ids(list(messages)))


def test_plain_messages_open_the_assistants_turn(tokenizer: ChatTokenizer) -> None:
    text = rendered(tokenizer, {"role": "user", "content": "Hi"})
    assert text == "<|user|>Hi<|end|><|assistant|>"


@pytest.mark.parametrize(
    "content", [[{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], ["a", "b"], "a\nb"], ids=str
)
def test_text_parts_are_joined(tokenizer: ChatTokenizer, content: Any) -> None:
    assert rendered(tokenizer, {"role": "user", "content": content}).startswith("<|user|>a\nb<|end|>")


def test_developer_is_system(tokenizer: ChatTokenizer) -> None:
    assert rendered(tokenizer, {"role": "developer", "content": "Be brief."}).startswith("<|system|>Be brief.")


def test_tool_calls_become_text_where_the_template_has_no_place_for_them(tokenizer: ChatTokenizer) -> None:
    text = rendered(
        tokenizer,
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": "rain"},
    )
    call = '<tool_call>\n{"name": "look", "arguments": {"at": "K�ln"}}\n</tool_call>'
    assert text.replace("��", "�") == f"<|assistant|>{call}<|end|><|tool|>rain<|end|><|assistant|>"


def test_tool_calls_stay_structured_where_the_template_reads_them() -> None:
    message = plain_message({"role": "assistant", "content": None, "tool_calls": [CALL]}, 0, True)
    assert message["tool_calls"][0]["function"]["arguments"] == {"at": "Köln"}
    assert message["content"] == ""


def test_parts_that_are_no_text_are_named(tokenizer: ChatTokenizer) -> None:
    with pytest.raises(PromptError) as caught:
        tokenizer.prompt_ids(
            [{"role": "user", "content": "a"}, {"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]
        )
    assert caught.value.field == "messages[1].content[0]"


def test_what_a_template_refuses_is_an_error_of_the_messages(tokenizer: ChatTokenizer) -> None:
    tokenizer._tokenizer.chat_template, kept = (
        "{{ raise_exception('roles must alternate') }}",
        (tokenizer._tokenizer.chat_template),
    )
    try:
        with pytest.raises(PromptError, match="roles must alternate"):
            tokenizer.prompt_ids([{"role": "user", "content": "a"}])
    finally:
        tokenizer._tokenizer.chat_template = kept


def test_text_comes_back_as_it_was_sampled(tokenizer: ChatTokenizer) -> None:
    words = "It is n't  a , b ."  # a tokenizer's clean-up would move these spaces
    assert tokenizer.decode([*tokenizer.encode(words), 256]) == words
