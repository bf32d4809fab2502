"""What every dialect turns into: messages with a role, text, tool calls, reasoning and media digests.

Reading is lenient: a client may send anything, so a wrong type becomes text or nothing, never an exception. The one
exception is a body that is no JSON object at all, which raises ContractError.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import msgspec

from libs.errors import ContractError

ROLES = ("system", "user", "assistant", "tool")
_ROLE_NAMES = {"developer": "system", "human": "user", "model": "assistant", "ai": "assistant", "function": "tool"}
_MAPPINGS = (dict, Mapping)  # the check of the abstract type alone costs three times as much
_MAX_DEPTH = 64  # nesting that no client sends; below it garbage is dropped instead of exhausting the stack


class ToolCall(msgspec.Struct, frozen=True):
    """A call the model asked for. `arguments` is the JSON text as sent (it may not parse); `id` is the client's."""

    name: str
    arguments: str
    id: str = ""


class ChatMessage(msgspec.Struct, frozen=True):
    """One message. `role` is system, user, assistant or tool (one tool result each); `media` holds sha256 digests.

    `id` is the provider's id of the message, or for a tool result the id of the call it answers.
    """

    role: str
    text: str
    tool_calls: tuple[ToolCall, ...] = ()
    reasoning: str = ""
    media: tuple[str, ...] = ()
    id: str = ""

    @property
    def empty(self) -> bool:
        """Nothing in it that a person or a tool could answer."""
        return not (self.text.strip() or self.tool_calls or self.media)


class ParsedRequest(msgspec.Struct, frozen=True):
    """A request in common terms. Instructions outside the message list come first, as system messages."""

    dialect: str
    messages: tuple[ChatMessage, ...]
    model: str = ""
    tool_names: tuple[str, ...] = ()
    max_tokens: int | None = None
    previous_response_id: str | None = None  # the server holds the history (responses API)
    body: Mapping[str, Any] = {}

    @property
    def has_tools(self) -> bool:
        return bool(self.tool_names)


class ParsedResponse(msgspec.Struct, frozen=True):
    """A response in common terms: one assistant message per choice (none when the provider sent an error).

    `finish` is "stop", "tool_calls", "length", "refusal" or "" (unknown, or the stream was cut).
    """

    dialect: str
    choices: tuple[ChatMessage, ...]
    finish: str = ""
    id: str = ""
    error: str = ""

    @property
    def reply(self) -> ChatMessage | None:
        """The first choice, or None when nothing was served."""
        return self.choices[0] if self.choices else None


class Dialect(Protocol):
    """One provider API. Both functions raise ContractError only when the body is no JSON object."""

    name: str

    def parse_request(self, body: Any) -> ParsedRequest: ...

    def parse_response(self, body: Any) -> ParsedResponse: ...


def as_object(body: Any, what: str) -> Mapping[str, Any]:
    """The body as a mapping; raises ContractError that names `what` when it is none."""
    if not isinstance(body, Mapping):
        raise ContractError(f"{what} must be a JSON object, is {type(body).__name__}", reason=f"{what}_not_an_object")
    return body


def items(value: Any) -> list[Mapping[str, Any]]:
    """The mappings of a list; anything else is dropped."""
    return [x for x in value if isinstance(x, _MAPPINGS)] if isinstance(value, list | tuple) else []


def role_of(value: Any, default: str = "user") -> str:
    """A role in common terms; unknown roles count as `default`."""
    if value in ROLES:  # nearly always
        return str(value)
    role = str(value).lower() if isinstance(value, str) else default
    role = _ROLE_NAMES.get(role, role)
    return role if role in ROLES else default


def plain(value: Any, depth: int = 0) -> str:
    """Any JSON value as text: strings as they are, parts by their text, the rest as JSON."""
    if isinstance(value, str):
        return value
    if value is None or depth > _MAX_DEPTH:
        return ""
    if isinstance(value, list | tuple):
        return "\n".join(t for t in (plain(v, depth + 1) for v in value) if t)
    if isinstance(value, Mapping):
        for name in ("text", "content", "output", "refusal"):
            if name in value and isinstance(value[name], str | list | tuple | Mapping):
                return plain(value[name], depth + 1)
        return dump(value)
    return dump(value)


def dump(value: Any) -> str:
    """A value as compact JSON text; what JSON cannot hold becomes its string form."""
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)
    except (ValueError, RecursionError, TypeError):
        return ""


def text_id(value: Any) -> str:
    """An identifier as text, or "" when it is none."""
    return value if isinstance(value, str) else ""


def digest(value: Any) -> str:
    """sha256 of a value's text, so that pictures and files are compared without being kept."""
    text = value if isinstance(value, str) else dump(value)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def call(name: Any, arguments: Any, id_: Any = "") -> ToolCall:
    """A tool call; arguments that came as an object become JSON text."""
    text = arguments if isinstance(arguments, str) else "" if arguments is None else dump(arguments)
    return ToolCall(name=text_id(name), arguments=text, id=text_id(id_))


def tool_names(tools: Any) -> tuple[str, ...]:
    """Names of the tools a request offers, in any dialect's form; a built-in tool counts by its type."""
    names = []
    for tool in items(tools):
        inner = tool.get("function")
        name = inner.get("name") if isinstance(inner, Mapping) else None
        names.append(str(name or tool.get("name") or tool.get("type") or "?"))
    return tuple(names)


def positive(*values: Any) -> int | None:
    """The first value that is a positive whole number."""
    return next((v for v in values if isinstance(v, int) and not isinstance(v, bool) and v > 0), None)


def join(parts: Iterable[str]) -> str:
    """Text parts under one another."""
    return "\n".join(p for p in parts if p)
