"""The table of session hints, and which headers a record keeps."""

from __future__ import annotations

import json
from typing import Any

import pytest

from libs.dialects.hints import agent_hint, recorded, recorded_headers, retry_count, session_hint, tag_of

OLD = "user_" + "a" * 64 + "_account_1b_session_0f8c2b1e-aaaa-bbbb-cccc-123456789012"


@pytest.mark.parametrize(
    ("headers", "body", "value"),
    [
        ({"x-session-id": "s"}, {}, "s"),
        ({"x-claude-code-session-id": "s"}, {}, "s"),
        ({"session-id": "s"}, {}, "s"),
        ({"thread-id": "t", "session-id": "s"}, {}, "t"),
        ({"x-session-affinity": "s"}, {}, "s"),
        ({"x-task-id": "s"}, {}, "s"),
        ({"agent-session-id": "s"}, {}, "s"),
        ({"x-litellm-session-id": "s"}, {}, "s"),
        ({"x-openwebui-chat-id": "s"}, {}, "s"),
        ({}, {"metadata": {"user_id": OLD}}, "0f8c2b1e-aaaa-bbbb-cccc-123456789012"),
        ({}, {"metadata": {"user_id": json.dumps({"device_id": "d", "session_id": "s"})}}, "s"),
        ({}, {"metadata": {"user_id": "ann"}}, None),
        ({}, {"session_id": "s"}, "s"),
        ({}, {"conversation_id": "s"}, "s"),
        ({}, {"conversation": {"id": "s"}}, "s"),
        ({}, {"conversation": "s"}, "s"),
        ({}, {"litellm_session_id": "s"}, "s"),
        ({}, {"prompt_cache_key": "s"}, "s"),
        ({}, {"prompt_cache_key": 17}, "17"),
        ({"x-session-id": "  "}, {"session_id": "s"}, "s"),
        ({"x-session-id": "h"}, {"session_id": "b"}, "h"),
        ({}, {"user": "ann"}, None),
        ({}, {"metadata": None, "session_id": ["s"]}, None),
        ({}, {"metadata": {"user_id": "{broken"}}, None),
        ({}, "not an object", None),
        ({}, {"session_id": "x" * 600}, None),
    ],
)
def test_session_hints(headers: dict[str, str], body: Any, value: str | None) -> None:
    found = session_hint(headers, body)
    assert (found[1] if found else None) == value


def test_a_person_is_no_conversation_and_a_parent_is_no_session() -> None:
    assert session_hint({"x-parent-session-id": "p"}, {}) is None
    assert agent_hint({"x-parent-session-id": "p"}, {}) == ("x-parent-session-id", "p")


def test_tags() -> None:
    assert tag_of({"x-reef-tag-session": " s 1 "}) == "s 1"
    assert tag_of({"x-reef-tag-session": ""}) is None


@pytest.mark.parametrize(("value", "count"), [("2", 2), ("", 0), ("x", 0), ("-1", 0), ("9" * 40, 999999), ("²", 0)])
def test_retry_counts(value: str, count: int) -> None:
    assert retry_count({"x-stainless-retry-count": value}) == count


def test_recorded_headers_never_hold_a_credential() -> None:
    kept = recorded_headers(
        [
            ("X-Session-Id", "s"),
            ("Authorization", "Bearer x"),
            ("x-api-key", "k"),
            ("Cookie", "c"),
            ("x-reef-tag-session", "t"),
            ("x-reef-auth-token", "no"),
            ("User-Agent", "a"),
            ("user-agent", "b"),
            ("x-unknown", "u"),
            ("x-turn-type", "main"),
            ("X-Stainless-Retry-Count", "1"),
        ]
    )
    assert kept == {
        "x-session-id": "s",
        "x-reef-tag-session": "t",
        "user-agent": "a",
        "x-turn-type": "main",
        "x-stainless-retry-count": "1",
    }
    assert not recorded("x-reef-api-key") and not recorded("proxy-authorization")
