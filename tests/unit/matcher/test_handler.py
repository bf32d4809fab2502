"""The matcher's handler: outputs, order within a conversation, crashes between any two steps."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from libs.contracts import ExchangeClassified, TrafficRaw, TurnMatched, decode, encode
from libs.dialects import partition_key
from libs.errors import ContractError, RetryError
from libs.matching.matcher import Matcher
from libs.matching.memory import MemoryStore
from libs.matching.plan import Limits, Plan, Result
from libs.streams.types import Output, StreamRecord
from services.matcher.handler import MatchHandler
from tests.unit.matching.talk import CRON, PLAN, SHORT, World, said, user
from tests.unit.matching.test_properties import many
from tests.unit.matching.traffic import traffics

ASK = user("List what is in this folder.")
NO = user("No, keep the steps, just stop using bullet lists.")


def stream(records: Sequence[TrafficRaw]) -> list[StreamRecord]:
    return [StreamRecord("traffic.raw", 0, n, partition_key(r).encode(), encode(r)) for n, r in enumerate(records)]


def conversation(**fields: Any) -> list[TrafficRaw]:
    w = World()
    w.exchange([ASK], PLAN, match=False, **fields)
    w.exchange([ASK, said(PLAN), NO], SHORT, match=False, **fields)
    w.exchange([ASK, said(PLAN), NO, said(SHORT), user("Thanks.")], CRON, match=False, **fields)
    return w.records


def produced(outputs: Sequence[Output]) -> tuple[list[TurnMatched], list[ExchangeClassified]]:
    matched = [decode(o.value, TurnMatched) for o in outputs if o.topic == "turns.matched"]
    return matched, [decode(o.value, ExchangeClassified) for o in outputs if o.topic == "exchanges.classified"]


async def run(handler: MatchHandler, records: Sequence[StreamRecord]) -> list[Output]:
    return [o for r in records for o in (await handler.handle(r)).outputs]


async def test_one_line_per_exchange_and_one_record_per_binding() -> None:
    outputs = await run(MatchHandler(Matcher(MemoryStore())), stream(conversation()))
    matched, lines = produced(outputs)
    assert [(m.turn_id, m.answered_by) for m in matched] == [("x0001", "x0002"), ("x0002", "x0003")]
    assert [(c.exchange_id, c.turn_id, c.reason) for c in lines] == [
        ("x0001", None, "first_request"),
        ("x0002", "x0001", "matched"),
        ("x0003", "x0002", "matched"),
    ]
    assert {o.key for o in outputs} == {matched[0].session_id}


async def test_a_retry_gives_no_second_turn() -> None:
    w = World()
    w.exchange([ASK], PLAN, match=False)
    w.exchange([ASK, said(PLAN), NO], None, outcome="upstream_error", match=False)
    w.exchange([ASK, said(PLAN), NO], SHORT, match=False)
    matched, lines = produced(await run(MatchHandler(Matcher(MemoryStore())), stream(w.records)))
    assert [(m.turn_id, m.answered_by) for m in matched] == [("x0001", "x0002")]
    assert [(c.exchange_class, c.turn_id) for c in lines[1:]] == [("main", "x0001"), ("retry", "x0001")]


@pytest.mark.parametrize("exchange_id", ["", "?chain x", "?", "a\nb"])
async def test_an_id_that_the_state_cannot_keep_is_dead_lettered(exchange_id: str) -> None:
    """In Redis the second such record stopped the matcher, and again after each start."""
    (record, *_) = stream([replace(r, exchange_id=exchange_id) for r in conversation()])
    with pytest.raises(ContractError, match="exchange_id"):
        await MatchHandler(Matcher(MemoryStore())).handle(record)


@pytest.mark.parametrize("value", [b"", b"not json", b"[]", b'{"exchange_id": 1}', b"\xff\xfe", b'{"version": 9}'])
async def test_what_is_no_record_is_dead_lettered(value: bytes) -> None:
    with pytest.raises(ContractError):
        await MatchHandler(Matcher(MemoryStore())).handle(StreamRecord("traffic.raw", 0, 0, None, value))


@pytest.mark.parametrize(
    ("request_body", "response"),
    [
        (None, None),
        ("text", "text"),
        ([1, 2], [3]),
        ({}, {}),
        ({"messages": None}, {"choices": 3}),
        ({"messages": [None, 1, {"role": 5, "content": {"a": 1}}]}, {"choices": [None, {"message": 1}]}),
        ({"messages": [{"content": [{"type": "text", "text": None}, 3]}] * 3}, {"choices": [{"message": {}}] * 3}),
        ({"messages": [{"role": "assistant", "tool_calls": [1, {"function": 3}]}]}, {"error": {"code": None}}),
        ({"input": {"a": 1}, "metadata": {"user_id": "{broken"}}, {"output": [{"type": 3}]}),
        ({"messages": [{"role": "user", "content": "\ud800\x00"}]}, {"choices": [{"message": {"content": "\udfff"}}]}),
    ],
)
async def test_whatever_a_client_sends_is_classified(request_body: Any, response: Any) -> None:
    for path in ("/v1/chat/completions", "/v1/messages", "/v1/responses", "/v1/other", ""):
        raw = json.loads(encode(conversation()[0])) | {"request": request_body, "response": response, "path": path}
        record = StreamRecord("traffic.raw", 0, 0, None, json.dumps(raw).encode())
        _, lines = produced((await MatchHandler(Matcher(MemoryStore())).handle(record)).outputs)
        assert len(lines) == 1


async def test_exchanges_of_one_conversation_are_matched_in_order() -> None:
    """They are given at once, and the state answers the first one last."""

    class Slow(MemoryStore):
        async def apply(self, plan: Plan, limits: Limits) -> Result:
            for _ in range(20 if plan.id == "x0001" else 1):
                await asyncio.sleep(0)
            return await super().apply(plan, limits)

    handler = MatchHandler(Matcher(Slow()))
    dones = await asyncio.gather(*(handler.handle(r) for r in stream(conversation())))
    _, lines = produced([o for d in dones for o in d.outputs])
    assert [c.reason for c in lines] == ["first_request", "matched", "matched"]


class Crash(Exception):
    pass


class Crashing(MemoryStore):
    """Fails before or after the state was written, as drawn."""

    def __init__(self, plan: list[str]) -> None:
        super().__init__()
        self.plan = plan

    async def apply(self, plan: Plan, limits: Limits) -> Result:
        step = self.plan.pop() if self.plan else ""
        if step == "before state":
            raise Crash
        result = await super().apply(plan, limits)
        if step == "after state":
            raise Crash
        return result


@many
@given(traffics(), st.lists(st.sampled_from(("", "before state", "after state", "produced")), max_size=12))
def test_a_crash_between_any_two_steps_loses_no_binding(records: list[TrafficRaw], crashes: list[str]) -> None:
    """Each record is read again until its offset is committed; what was produced twice has the same ids."""

    async def with_crashes() -> list[Output]:
        store = Crashing([c for c in crashes if c != "produced"])
        lost = ["produced" in c for c in crashes]
        out: list[Output] = []
        for record in stream(records):
            while True:
                try:
                    done = await MatchHandler(Matcher(store)).handle(record)  # a new process each time
                except Crash:
                    continue
                cut = lost.pop() if lost else False
                out += done.outputs[: len(done.outputs) // 2] if cut else done.outputs
                if not cut:
                    break
        return out

    async def without() -> list[Output]:
        return await run(MatchHandler(Matcher(MemoryStore())), stream(records))

    assert {o.value for o in asyncio.run(with_crashes())} == {o.value for o in asyncio.run(without())}


async def test_a_state_that_is_away_is_waited_for() -> None:
    class Away(MemoryStore):
        async def apply(self, plan: Plan, limits: Limits) -> Result:
            raise RetryError("redis: gone", reason="redis_connection")

    handler = MatchHandler(Matcher(Away()))
    with pytest.raises(RetryError):
        await handler.handle(stream(conversation())[0])
