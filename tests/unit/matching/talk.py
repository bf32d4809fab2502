"""Clients that talk to a model through a gateway, in any dialect, for matcher tests. Time moves one second a step."""

from __future__ import annotations

import asyncio
import copy
import json
from dataclasses import dataclass, field
from typing import Any, Literal

from libs.contracts import ExchangeClassified, TrafficRaw, TurnMatched
from libs.matching.matcher import Matcher, Outcome
from libs.matching.memory import MemoryStore
from libs.matching.plan import Limits
from libs.matching.reading import read_record

Dialect = Literal["chat_completions", "messages", "responses"]
DIALECTS: tuple[Dialect, ...] = ("chat_completions", "messages", "responses")
PATHS = {"chat_completions": "/v1/chat/completions", "messages": "/v1/messages", "responses": "/v1/responses"}
TOOLS = [{"type": "function", "name": "bash", "function": {"name": "bash"}}]
Item = dict[str, Any]


def user(text: str) -> Item:
    return {"role": "user", "content": text}


def said(text: str) -> Item:
    return {"role": "assistant", "content": text}


def called(dialect: Dialect, name: str, arguments: dict[str, Any], id_: str = "call_1", text: str = "") -> list[Item]:
    """An assistant message that calls a tool, as request items."""
    raw = json.dumps(arguments)
    if dialect == "messages":
        parts: list[Item] = [{"type": "text", "text": text}] if text else []
        parts.append({"type": "tool_use", "id": id_, "name": name, "input": arguments})
        return [{"role": "assistant", "content": parts}]
    if dialect == "responses":
        call = {"type": "function_call", "call_id": id_, "name": name, "arguments": raw}
        return [{"type": "message", **said(text)}, call] if text else [call]
    function = {"id": id_, "type": "function", "function": {"name": name, "arguments": raw}}
    return [{"role": "assistant", "content": text or None, "tool_calls": [function]}]


def result(dialect: Dialect, text: str, id_: str = "call_1") -> Item:
    """A tool result as a request item."""
    if dialect == "messages":
        return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": id_, "content": text}]}
    if dialect == "responses":
        return {"type": "function_call_output", "call_id": id_, "output": text}
    return {"role": "tool", "tool_call_id": id_, "content": text}


def response_of(dialect: Dialect, items: list[Item], finish: str = "", id_: str = "r") -> Any:
    """A response that serves these assistant items (chat completions: one choice per item)."""
    if dialect == "messages":
        content = items[0]["content"] if items else []
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
        return {"id": id_, "role": "assistant", "content": parts, "stop_reason": finish or "end_turn"}
    if dialect == "responses":
        output = [{"type": "message", **i} if "type" not in i else i for i in items]
        return {"id": id_, "status": "incomplete" if finish else "completed", "output": output}
    choices = [{"index": n, "message": i, "finish_reason": finish or "stop"} for n, i in enumerate(items)]
    return {"id": id_, "object": "chat.completion", "choices": choices}


@dataclass
class World:
    """A matcher in memory, a clock, and everything that came out."""

    limits: Limits = field(default_factory=Limits)
    now: float = 1_000.0
    count: int = 0
    records: list[TrafficRaw] = field(default_factory=list)
    outcomes: dict[str, Outcome] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.matcher = Matcher(MemoryStore(), self.limits)

    def exchange(
        self,
        items: list[Item],
        reply: list[Item] | str | None,
        *,
        dialect: Dialect = "chat_completions",
        system: str = "You are a helpful assistant.",
        tools: bool = True,
        headers: dict[str, str] | None = None,
        body: dict[str, Any] | None = None,
        tenant: str = "t",
        scenario: str = "default",
        outcome: Literal["completed", "client_gone", "upstream_error"] = "completed",
        finish: str = "",
        seconds: float = 0.5,
        match: bool = True,
        response: Any = None,
    ) -> str:
        """One exchange; returns its id. `match=False` records it without giving it to the matcher."""
        self.now += 1.0
        self.count += 1
        name = f"x{self.count:04d}"
        items = copy.deepcopy(items)
        request: dict[str, Any] = {"model": "m", **({"tools": TOOLS} if tools else {}), **(body or {})}
        if dialect == "messages":
            request |= {"messages": items, "system": system}
        elif dialect == "responses":
            request |= {"input": items, "instructions": system}
        else:
            request |= {"messages": [{"role": "system", "content": system}, *items] if system else items}
        served = [said(reply)] if isinstance(reply, str) else reply
        if response is None:
            error = {"error": {"message": "overloaded"}}
            response = error if served is None else response_of(dialect, served, finish, f"resp_{name}")
        raw = {
            "version": 1,
            "exchange_id": name,
            "scenario": scenario,
            "tenant": tenant,
            "received_at": self.now,
            "completed_at": self.now + seconds,
            "path": PATHS[dialect],
            "headers": headers or {},
            "request": request,
            "response": response,
            "outcome": outcome,
            "release_id": "base",
        }
        record = read_record(json.dumps(raw).encode())
        self.records.append(record)
        if match:
            self.match(record)
        return name

    def match(self, record: TrafficRaw) -> Outcome:
        self.outcomes[record.exchange_id] = asyncio.run(self.matcher.match(record))
        return self.outcomes[record.exchange_id]

    def bindings(self) -> set[tuple[str, str]]:
        """All (turn, answer) pairs of words or results."""
        every = (b for o in self.outcomes.values() for b in o.bindings)
        return {(b.turn_id, b.answered_by) for b in every if b.evidence == "next_state"}

    def binding(self, answer: str) -> TurnMatched:
        """The one binding that a record gave as an answer."""
        found = [b for b in self.outcomes[answer].bindings if b.evidence == "next_state"]
        assert len(found) == 1, f"{answer}: {self.outcomes[answer].classified[0]}"
        return found[0]

    def turn(self, answer: str) -> str | None:
        """The turn that an exchange answers."""
        found = [b.turn_id for b in self.outcomes[answer].bindings if b.evidence == "next_state"]
        return found[0] if found else None

    def line(self, name: str) -> ExchangeClassified:
        return self.outcomes[name].classified[0]

    def implicit(self, name: str) -> list[TurnMatched]:
        return [b for b in self.outcomes[name].bindings if b.evidence != "next_state"]


PLAN = "Here is the plan I would follow: read the file, list the folder, write a summary."
FILES = "The folder holds three things: a readme, loose notes and the code itself."
SHORT = "Read the file, list the folder, then write one line about it."
CRON = "A cron job runs once an hour with the schedule that starts with a zero."
