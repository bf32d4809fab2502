"""Main turn, side call or compaction: what a request says about itself, before any look-up."""

from __future__ import annotations

from collections.abc import Sequence

from libs.contracts import TrafficRaw
from libs.dialects import ChatMessage, ParsedRequest
from libs.dialects.hints import TURN_TYPE_HEADER
from libs.matching.identity import Identity
from libs.matching.patterns import (
    SideKind,
    instruction_kind,
    person_words,
    probe,
    service_role,
    system_kind,
    transcript_kind,
    written_out,
)
from libs.matching.plan import Kind


def kind_of(record: TrafficRaw, parsed: ParsedRequest, identity: Identity) -> tuple[Kind, str]:
    """(kind, reason). "It has no tools" alone says nothing: chat clients send none, heartbeats do."""
    said = record.headers.get(TURN_TYPE_HEADER, "").strip().lower()
    if said == "main":
        return "main", ""
    if said == "side":
        return "side", "declared_side"
    if identity.agent:
        return "side", "sub_agent"
    if not parsed.messages and not parsed.previous_response_id:
        return "side", "no_messages"
    found = _asked(parsed)
    if found == "compaction":
        return "compaction", "compaction_call"
    return ("side", f"{found}_call") if found else ("main", "")


def ask_texts(parsed: ParsedRequest) -> list[str]:
    """The messages that a compaction call is recognised by, unless they write a conversation out.

    A history that goes on from a summary may look the same: its newest message holds the summary itself.
    """
    newest = [t for t in _newest_users(parsed.messages) if not written_out(t)]
    return [t for t in newest if instruction_kind(person_words(t) or t, sure=False, service=True)]


def _asked(parsed: ParsedRequest) -> SideKind | None:
    newest = _newest_users(parsed.messages)
    if not newest:
        return None
    history = any(m.role == "assistant" for m in parsed.messages)
    system = "\n".join(m.text for m in parsed.messages if m.role == "system")
    service = not parsed.has_tools and service_role(system)
    for text in newest:
        words = person_words(text)  # a reminder beside the words may speak of summaries too
        sure = (history and parsed.has_tools) or not words
        kind = instruction_kind(words or text, sure=sure, service=service)
        if kind:
            return kind
    if not history and probe(newest[-1], parsed.max_tokens):
        return "probe"
    if parsed.has_tools:
        return None
    if not history:
        found = transcript_kind(system, newest[-1])
        if found:
            return found
    return system_kind(system) if system and not history else None


def _newest_users(messages: Sequence[ChatMessage]) -> list[str]:
    """The user messages that end the request; none when it ends with tool results or with an assistant message."""
    found: list[str] = []
    for message in reversed(messages):
        if message.role == "system":
            continue
        if message.role != "user":
            break
        found.append(message.text)
    return found[::-1]
