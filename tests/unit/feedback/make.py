"""Small records and questions for the feedback tests."""

from __future__ import annotations

from typing import Any

from libs.contracts import Array, Capture, EarlierTurn, Message, TurnMatched
from libs.feedback.judge import Ballot, Judgement, NumberedTurn, Question, Verdict


def capture() -> Capture:
    return Capture(
        prompt_token_ids=Array.ints([1, 2]),
        response_token_ids=Array.ints([3]),
        logprobs=Array.floats([-0.5]),
        topk_ids=Array.ints([3, 4], [1, 2]),
        topk_logprobs=Array.floats([-0.5, -1.5], [1, 2]),
    )


def earlier(number: int, **fields: Any) -> EarlierTurn:
    base: dict[str, Any] = {
        "number": number,
        "turn_id": f"turn-{number}",
        "path": "/v1/chat/completions",
        "prompt": [Message("user", f"question {number}")],
        "reply": f"answer {number}",
        "request": {"messages": [{"role": "user", "content": f"question {number}"}]},
        "response": {"n": number},
        "release_id": f"release-{number}",
        "received_at": number * 10.0,
        "completed_at": number * 10.0 + 1,
        "capture": capture(),
    }
    return EarlierTurn(**base | fields)


def matched(*next_state: Message, **fields: Any) -> TurnMatched:
    base: dict[str, Any] = {
        "turn_id": "turn-last",
        "answered_by": "answer-1",
        "scenario": "s",
        "tenant": "t",
        "session_id": "session",
        "rule": "tag",
        "confidence": 1.0,
        "path": "/v1/chat/completions",
        "prompt": [Message("user", "How do I bake bread?")],
        "reply": "1. Mix\n2. Knead\n3. Bake",
        "next_state": list(next_state),
        "request": {"messages": [{"role": "user", "content": "How do I bake bread?"}]},
        "response": {"n": "last"},
        "release_id": "release-last",
        "received_at": 100.0,
        "completed_at": 101.0,
        "answered_at": 110.0,
        "earlier": [],
        "capture": capture(),
    }
    return TurnMatched(**base | fields)


def question(*next_state: Message | str, **fields: Any) -> Question:
    """A question about a list-formatted answer; a string is a user message."""
    said = tuple(Message("user", m) if isinstance(m, str) else m for m in next_state)
    base: dict[str, Any] = {
        "prompt": (Message("user", "How do I bake bread?"),),
        "reply": "1. Mix flour and water\n2. Knead\n3. Bake for an hour",
        "next_state": said,
    }
    return Question(**base | fields)


def turns(*replies: str) -> tuple[NumberedTurn, ...]:
    return tuple(NumberedTurn(i, (Message("user", f"question {i}"),), r) for i, r in enumerate(replies, 1))


def ballot(verdict: Verdict, hint: str = "", number: int = 1) -> Ballot:
    return Ballot(judgements=(Judgement(number, verdict, hint=hint),))


def abstention(reason: str = "timeout", *, outage: bool = False) -> Ballot:
    return Ballot(abstained=reason, outage=outage)
