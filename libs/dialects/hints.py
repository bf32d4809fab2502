"""Identifiers that clients send anyway, in one table, and the headers a record may keep.

The gateway records only the headers listed here (never credentials); matching reads session identity from them and
from the body. A tag or a hint names a conversation, but the same value may also cover its side calls and sub-agents.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

TAG_HEADER = "x-reef-tag-session"
TURN_TYPE_HEADER = "x-turn-type"  # "main" or "side", from clients that know
RETRY_HEADERS = ("x-stainless-retry-count", "x-retry-count", "retry-attempt", "x-retry-attempt", "x-amz-retry-count")
_MAX_VALUE = 512  # characters; no identifier is longer, and a longer value is not worth keeping
_MAX_HEADER = 8192

Form = Literal["plain", "user_id"]


@dataclass(frozen=True, slots=True)
class Hint:
    """Where an identifier is found. `path` is a header name or the keys down the request body."""

    name: str
    place: Literal["header", "body"]
    path: tuple[str, ...]
    form: Form = "plain"


def _header(name: str) -> Hint:
    return Hint(name, "header", (name,))


def _body(*path: str, form: Form = "plain") -> Hint:
    return Hint(".".join(path), "body", path, form)


# Names the conversation. The first that is present counts, so the narrower names come first.
SESSION_HINTS: tuple[Hint, ...] = (
    _header("x-session-id"),
    _header("x-claude-code-session-id"),
    _header("thread-id"),
    _header("thread_id"),
    _header("x-thread-id"),
    _header("session-id"),
    _header("session_id"),
    _header("conversation-id"),
    _header("conversation_id"),
    _header("x-conversation-id"),
    _header("x-openwebui-chat-id"),
    _header("x-chat-id"),
    _header("x-session-affinity"),
    _header("x-task-id"),
    _header("agent-session-id"),
    _header("x-agent-session-id"),
    _header("x-litellm-session-id"),
    _header("helicone-session-id"),
    _header("langfuse-session-id"),
    _header("x-langfuse-session-id"),
    _header("vscode-sessionid"),
    _body("metadata", "user_id", form="user_id"),
    _body("conversation"),
    _body("conversation", "id"),
    _body("thread_id"),
    _body("conversation_id"),
    _body("chat_id"),
    _body("session_id"),
    _body("litellm_session_id"),
    _body("metadata", "thread_id"),
    _body("metadata", "conversation_id"),
    _body("metadata", "chat_id"),
    _body("metadata", "session_id"),
    _body("litellm_metadata", "session_id"),
    _body("client_metadata", "thread_id"),
    _body("client_metadata", "session_id"),
    _body("extra_body", "session_id"),
    _body("prompt_cache_key"),
)

# Says that the sender is a sub-agent of the conversation named above, or names its parent.
AGENT_HINTS: tuple[Hint, ...] = (
    _header("x-claude-code-agent-id"),
    _header("x-agent-id"),
    _header("x-openai-subagent"),
    _header("x-parent-session-id"),
    _header("x-codex-parent-thread-id"),
    _header("x-parent-thread-id"),
    _header("x-parent-task-id"),
)

_SESSION_NAMES = frozenset(h.path[0] for h in SESSION_HINTS)
_AGENT_NAMES = frozenset(h.path[0] for h in AGENT_HINTS)
_ALLOWED = frozenset(
    [h.path[0] for h in (*SESSION_HINTS, *AGENT_HINTS) if h.place == "header"]
    + [*RETRY_HEADERS, TURN_TYPE_HEADER, "x-session-done", "user-agent", "originator", "x-app", "x-client-request-id"]
    + ["x-codex-window-id", "x-codex-turn-metadata", "x-openwebui-message-id", "x-interaction-id", "x-initiator"]
)
_ALLOWED_PREFIX = "x-reef-"
_SECRET = re.compile(r"auth|token|secret|api[-_]?key|cookie|password|credential")
# Anthropic's first form of metadata.user_id: user_<hash>_account_<uuid>_session_<uuid>
_USER_ID = re.compile(r"(?:^|_)session_([0-9A-Za-z-]{8,})$")


def recorded(name: str) -> bool:
    """May a record keep this header (any case)? Never one that could hold a credential."""
    name = name.lower()
    return (name in _ALLOWED or name.startswith(_ALLOWED_PREFIX)) and not _SECRET.search(name)


def recorded_headers(headers: Iterable[tuple[str, str]]) -> dict[str, str]:
    """The headers a record keeps, names in lower case; the first of repeated ones; long values are cut."""
    kept: dict[str, str] = {}
    for name, value in headers:
        if recorded(name):
            kept.setdefault(name.lower(), value[:_MAX_HEADER])
    return kept


def tag_of(headers: Mapping[str, str]) -> str | None:
    """The conversation's tag, unique within tenant and scenario."""
    return _clean(headers.get(TAG_HEADER))


def session_hint(headers: Mapping[str, str], request: Any) -> tuple[str, str] | None:
    """The first session hint present, as (name of the hint, value)."""
    return _first(SESSION_HINTS, _SESSION_NAMES, headers, request)


def agent_hint(headers: Mapping[str, str], request: Any) -> tuple[str, str] | None:
    """The mark of a sub-agent, as (name of the hint, value)."""
    return _first(AGENT_HINTS, _AGENT_NAMES, headers, request)


def retry_count(headers: Mapping[str, str]) -> int:
    """How many times the client says that it sent this request before."""
    for name in RETRY_HEADERS:
        value = headers.get(name, "")
        if isinstance(value, str) and value.strip().isdecimal():
            return int(value.strip()[:6])
    return 0


def _first(
    table: tuple[Hint, ...], names: frozenset[str], headers: Mapping[str, str], request: Any
) -> tuple[str, str] | None:
    body = request if isinstance(request, Mapping) else {}
    if names.isdisjoint(headers) and names.isdisjoint(body):  # most requests name nothing
        return None
    for hint in table:
        source: Mapping[str, Any] = headers if hint.place == "header" else body
        if hint.path[0] not in source:
            continue
        value = _value(hint, source)
        if value is not None:
            return hint.name, value
    return None


def _value(hint: Hint, found: Any) -> str | None:
    for key in hint.path:
        if not isinstance(found, Mapping):
            return None
        found = found.get(key)
    return _user_id_session(found) if hint.form == "user_id" else _clean(found)


def _user_id_session(value: Any) -> str | None:
    """The session inside metadata.user_id: a JSON object with session_id, or ..._session_<uuid>; else nothing.

    A user_id without a session names a person, not a conversation.
    """
    text = _clean(value, limit=4096)
    if text is None:
        return None
    if text.startswith("{"):
        try:
            inner = json.loads(text)
        except (ValueError, RecursionError):
            return None
        return _clean(inner.get("session_id")) if isinstance(inner, dict) else None
    match = _USER_ID.search(text)
    return match.group(1) if match else None


def _clean(value: Any, limit: int = _MAX_VALUE) -> str | None:
    if isinstance(value, bool) or not isinstance(value, str | int):
        return None
    text = str(value).strip() if isinstance(value, str) else str(value)
    return text if 0 < len(text) <= limit else None
