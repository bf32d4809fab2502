"""Exchanges for measuring: many sessions without ids, each growing by a turn an exchange."""

from __future__ import annotations

import json
import random

from libs.contracts import TrafficRaw
from libs.matching.reading import read_record

_WORDS = (
    "the a plan of notes file reads list writes answer short long step first second check value returns error "
    "path folder build test keep drop change line"
)


def _text(kind: str, session: int, number: int, count: int) -> str:
    words = _WORDS.split()
    draw = random.Random(f"{kind}{session}/{number}")
    return f"{kind} {session}-{number}: " + " ".join(draw.choice(words) for _ in range(count))


def exchange(session: int, turn: int, *, messages: int = 20, same_opening: bool = False) -> TrafficRaw:
    """Exchange number `turn` of a session. Its first request has `messages` messages of about 150 characters."""
    before = (messages - 2) // 2 + turn
    said = [{"role": "system", "content": "You are a helpful assistant."}]
    for n in range(before):
        owner = -1 if same_opening and n == 0 else session
        said.append({"role": "user", "content": _text("Question", owner, n, 20)})
        said.append({"role": "assistant", "content": _text("Reply", owner, n, 30)})
    said.append({"role": "user", "content": _text("Question", session, before, 20)})
    reply = {"role": "assistant", "content": _text("Reply", session, before, 30)}
    now = 1_000_000.0 + turn * 600.0 + session * 0.001
    raw = {
        "version": 1,
        "exchange_id": f"{session:07d}-{turn:03d}",
        "scenario": "default",
        "tenant": "t",
        "received_at": now,
        "completed_at": now + 0.5,
        "path": "/v1/chat/completions",
        "headers": {},
        "request": {"model": "m", "messages": said},
        "response": {
            "id": f"c{session}-{turn}",
            "choices": [{"index": 0, "message": reply, "finish_reason": "stop"}],
        },
        "outcome": "completed",
        "release_id": "base",
    }
    return read_record(json.dumps(raw).encode())
