"""Chat prompts as token ids: the policy renders a request with these, and the teacher's hinted prompt as well.

A response is never rendered again: what was sampled is what is trained, appended by token id to either prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from libs.errors import DeadLetterError

ChatMessage = dict[str, Any]  # {"role": ..., "content": ..., possibly tool_calls, tool_call_id, name}


def render(tokenizer: Any, messages: Sequence[ChatMessage], tools: Sequence[Any] | None = None) -> list[int]:
    """Token ids of the chat template over `messages` with the opening of the assistant's turn.

    Raises DeadLetterError (reason "template") when the template refuses the messages.
    """
    try:
        out = tokenizer.apply_chat_template(
            list(messages), tools=list(tools) if tools else None, add_generation_prompt=True, return_dict=False
        )
    except Exception as error:  # jinja raises whatever the template's author chose
        raise DeadLetterError(
            f"the chat template does not accept these messages: {error}", reason="template"
        ) from error
    return [int(i) for i in out]


def with_hint(messages: Sequence[ChatMessage], hint: str) -> list[ChatMessage]:
    """The messages with `hint` appended to the last user message (OpenClaw-RL's hindsight prompt).

    Without any user message (a pure tool loop) the hint becomes a user message of its own at the end.
    """
    out = [dict(m) for m in messages]
    for message in reversed(out):
        if message.get("role") == "user":
            message["content"] = f"{_text(message.get('content'))}\n\n{hint}".lstrip()
            return out
    return [*out, {"role": "user", "content": hint}]


def _text(content: Any) -> str:
    """Plain text of a content that is a string or a list of parts."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(str(p.get("text", "")) for p in content if isinstance(p, dict) and p.get("text"))
    return ""
