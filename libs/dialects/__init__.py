"""Provider APIs in common terms: one module per API. Used by the gateway, by matching and by the trainer."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from libs.contracts import TrafficRaw
from libs.dialects.base import ChatMessage, Dialect, ParsedRequest, ParsedResponse, ToolCall
from libs.dialects.chat_completions import ChatCompletions
from libs.dialects.hints import session_hint, tag_of
from libs.dialects.messages import Messages
from libs.dialects.responses import Responses
from libs.errors import ContractError

# A path is known by its ending, so that a proxy's own prefix ("/proxy/v1/messages") does not hide the dialect.
DIALECTS: dict[str, Dialect] = {
    "/chat/completions": ChatCompletions(),
    "/completions": ChatCompletions(),
    "/messages": Messages(),
    "/responses": Responses(),
}
# Calls of the same APIs that generate nothing.
NOT_GENERATING = ("/messages/count_tokens", "/responses/compact", "/messages/batches")


@functools.lru_cache(maxsize=256)
def for_path(path: str) -> Dialect | None:
    """The dialect spoken on an HTTP path, or None for a path that carries no generation."""
    bare = path.partition("?")[0].rstrip("/")
    if bare.endswith(NOT_GENERATING):
        return None
    return next((d for end, d in DIALECTS.items() if bare.endswith(end)), None)


def parse_request(record: TrafficRaw) -> ParsedRequest:
    """The record's request in common terms. Raises ContractError for an unknown path or a body that is no object."""
    return _dialect(record.path).parse_request(record.request)


def parse_response(record: TrafficRaw) -> ParsedResponse:
    """The record's response in common terms; no response at all parses as one without choices.

    Raises ContractError for an unknown path or a body that is no object.
    """
    dialect = _dialect(record.path)
    if record.response is None or isinstance(record.response, str | list):
        return ParsedResponse(dialect=dialect.name, choices=(), error=str(record.response or "")[:2000])
    return dialect.parse_response(record.response)


def _dialect(path: str) -> Dialect:
    dialect = for_path(path)
    if dialect is None:
        known = ", ".join(f"*{end}" for end in DIALECTS)
        raise ContractError(f"path {path!r} carries no known API; known: {known}", reason="unknown_path")
    return dialect


def partition_key(record: TrafficRaw) -> str:
    """Where a record goes: by its session identity if it names one, else by tenant, system prompt and opening.

    Gives locality, never correctness. Never raises: a body that cannot be read falls back to tenant and scenario.
    """
    tag = tag_of(record.headers)
    hint = ("tag", tag) if tag else session_hint(record.headers, record.request)
    parts: list[Any] = [record.tenant, record.scenario]
    if hint:
        return _hash([*parts, "id", hint[1]])
    return _hash([*parts, "opening", *_opening(record.path, record.request)])


def _opening(path: str, request: Any) -> tuple[str, str]:
    """System prompt and first user message, read without parsing the rest."""
    dialect = for_path(path)
    if dialect is None or not isinstance(request, Mapping):
        return "", ""
    name = "input" if dialect.name == "responses" else "messages"
    given = request.get(name)
    head = dict(request)
    if isinstance(given, list):
        head[name] = given[: _first_user(given) + 1]
    system, user = [], ""
    for message in dialect.parse_request(head).messages:
        if message.role == "system":
            system.append(message.text)
        elif message.role == "user":
            user = user or message.text or "".join(message.media)
    return "\n".join(system), user


def _first_user(given: list[Any]) -> int:
    return next((i for i, m in enumerate(given) if isinstance(m, Mapping) and m.get("role") == "user"), len(given))


def _hash(parts: list[Any]) -> str:
    """A key from parts that cannot run into one another, whatever separators they hold."""
    text = json.dumps(parts, ensure_ascii=True, default=str)
    return hashlib.blake2b(text.encode("ascii"), digest_size=12).hexdigest()


__all__ = [
    "ChatMessage",
    "Dialect",
    "ParsedRequest",
    "ParsedResponse",
    "ToolCall",
    "for_path",
    "parse_request",
    "parse_response",
    "partition_key",
]
