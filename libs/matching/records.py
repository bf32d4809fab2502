"""From a plan and its result to the records that go out: turns.matched and exchanges.classified. Pure."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Sequence
from typing import Any, cast

import msgspec

from libs.contracts import Capture, EarlierTurn, ExchangeClassified, Message, TrafficRaw, TurnMatched
from libs.dialects import ChatMessage, ParsedRequest, ParsedResponse
from libs.matching.canonical import block, lines
from libs.matching.identity import Identity
from libs.matching.patterns import person_words
from libs.matching.plan import CONFIDENCE, Plan, Result

_CONTEXT_MIN = 40  # characters: shorter words may well be said twice by a person
_RECENT = 12  # messages of a request whose user messages are remembered, so that repeated context is known


class Light(msgspec.Struct):
    """What later records show of a turn, without its request and response."""

    path: str
    prompt: list[Message]
    reply: str
    release_id: str
    received_at: float
    completed_at: float
    users: list[str]  # check sums of the longer user messages it was given last


class Answer(msgspec.Struct):
    """What a binding made by a late turn needs of the exchange that answers it."""

    exchange_id: str
    received_at: float
    next_state: list[Message]
    session: str
    tagged: bool
    hinted: bool
    captured: bool
    dialect: str


def reply_text(message: ChatMessage | None) -> str:
    """A reply as a person reads it; tool calls as name(arguments)."""
    if message is None:
        return ""
    calls = [f"{c.name}({c.arguments})" for c in message.tool_calls]
    return "\n".join([t for t in [message.text] if t] + calls)


def state_of(messages: Sequence[ChatMessage], users: frozenset[str] = frozenset()) -> list[Message]:
    """Messages as a next state: every tool result and every word of the person.

    What a program wrote into user text comes with role system. A longer user text that the turn itself was given
    already (`users`: file maps, trailing context) is left out, unless nothing else of the person remains.
    """
    out: list[Message] = []
    context: list[Message] = []
    for message in messages:
        if message.role in ("system", "assistant"):
            continue
        if message.role == "tool":
            out.append(Message("tool", message.text))
            continue
        words = person_words(message.text)
        if words and len(words) >= _CONTEXT_MIN and _known(message.text) in users:
            context.append(Message("user", words))
        elif words:
            out.append(Message("user", words))
        elif message.text.strip():
            out.append(Message("system", message.text))
        elif message.media:
            out.append(Message("user", f"[{len(message.media)} attachment(s) without text]"))
    return out or context


def _known(words: str) -> str:
    return f"{zlib.crc32(words.encode('utf-8', 'replace')):x}"


def tail(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """The messages after the newest assistant message."""
    end = next((i for i in range(len(messages) - 1, -1, -1) if _is_reply(messages[i])), -1)
    return list(messages[end + 1 :])


def _is_reply(message: ChatMessage) -> bool:
    return message.role == "assistant" and not message.empty


def light(record: TrafficRaw, parsed: ParsedRequest, response: ParsedResponse, newest: list[Message]) -> Light:
    """The small part of a turn. `newest` is what its request brought: `state_of` of the tail."""
    users = [_known(m.text) for m in parsed.messages[-_RECENT:] if m.role == "user" and len(m.text) >= _CONTEXT_MIN]
    return Light(
        path=record.path,
        prompt=newest,
        reply=reply_text(response.reply),
        release_id=record.release_id,
        received_at=record.received_at,
        completed_at=record.completed_at,
        users=users,
    )


def heavy(record: TrafficRaw) -> bytes:
    """Request, response and capture as one JSON object."""
    return msgspec.json.encode({"request": record.request, "response": record.response, "capture": record.capture})


def answer(record: TrafficRaw, identity: Identity, parsed: ParsedRequest, newest: list[Message]) -> Answer:
    """The part of an exchange that a late binding needs; `newest` as in `light`."""
    return Answer(
        exchange_id=record.exchange_id,
        received_at=record.received_at,
        next_state=newest,
        session=identity.session,
        tagged=identity.tagged,
        hinted=identity.hinted,
        captured=record.capture is not None,
        dialect=parsed.dialect,
    )


def call_texts(replies: Sequence[ChatMessage], at_least: int) -> Iterator[str]:
    """Longer texts among the arguments of tool calls: a delegated task is one."""
    for reply in replies:
        for call in reply.tool_calls:
            try:
                value = json.loads(call.arguments)
            except (ValueError, RecursionError):
                continue
            for text in value.values() if isinstance(value, dict) else ():
                if isinstance(text, str) and len(text) >= at_least and " " in text:
                    yield text


def rule_of(tagged: bool, session: str, turn_session: str, level: str) -> str:
    """The rule that a binding is reported under: identity first, then the evidence in the transcript."""
    if tagged:
        return "tag"
    if level == "response" or (session and session == turn_session):
        return "hint"
    if level in ("chain", "dropped"):
        return "prefix"
    return level if level == "bridge" else "anchor"


def confidence(level: str, narrowed: bool) -> float:
    """How sure a binding is, 0 to 1: by its evidence, less where several candidates had to be told apart."""
    return round(CONFIDENCE.get(level, 0.5) * (0.95 if narrowed else 1.0), 4)


def bindings(
    record: TrafficRaw, identity: Identity, parsed: ParsedRequest, plan: Plan, result: Result
) -> Iterator[TurnMatched]:
    """The bindings that a record gives: its own, implicit ones, and late ones that it is the turn of.

    A record that is delivered again after its turn was evicted gives none.
    """
    if result.turn and result.light:
        turn = msgspec.json.decode(result.light, type=Light)
        state = next_state(parsed, plan, result, turn)
        rule = rule_of(identity.tagged, identity.session, result.turn_session, result.level)
        bound = _matched(record, result, turn, result.heavy, state, rule)
        yield msgspec.structs.replace(bound, repeat_of=result.repeats) if result.repeats else bound
    if result.rejects and result.rejected_heavy:
        turn = msgspec.json.decode(result.rejected_light, type=Light)
        rule = "tag" if identity.tagged else "hint" if identity.session else "prefix"
        evidence = "branch" if result.kind == "branch" else "regeneration"
        yield msgspec.structs.replace(
            _matched(record, result, turn, result.rejected_heavy, [], rule),
            turn_id=result.rejects,
            evidence=evidence,
            confidence=0.5,
        )
    for one in result.late:
        own = light_of_record(plan)
        other = msgspec.json.decode(one.answer, type=Answer)
        rule = rule_of(other.tagged, other.session, identity.session, one.level)
        yield msgspec.structs.replace(
            _matched(record, result, own, plan.heavy, other.next_state, rule),
            turn_id=record.exchange_id,
            answered_by=other.exchange_id,
            answered_at=other.received_at,
            confidence=confidence(one.level, False),
        )


def light_of_record(plan: Plan) -> Light:
    """The light part of the plan's own exchange."""
    return msgspec.json.decode(plan.light, type=Light)


def _matched(
    record: TrafficRaw, result: Result, turn: Light, body: bytes, state: list[Message], rule: str
) -> TurnMatched:
    raw = _parts(body)
    return TurnMatched(
        turn_id=result.turn,
        answered_by=record.exchange_id,
        scenario=record.scenario,
        tenant=record.tenant,
        session_id=result.session,
        rule=rule,
        confidence=confidence(result.level, result.narrowed),
        path=turn.path,
        prompt=turn.prompt,
        reply=turn.reply,
        next_state=state,
        request=raw["request"],
        response=raw["response"],
        release_id=turn.release_id,
        received_at=turn.received_at,
        completed_at=turn.completed_at,
        answered_at=record.received_at,
        earlier=[_earlier(i, e.id, e.light, e.heavy) for i, e in enumerate(result.earlier, 1)],
        capture=cast("Capture | None", raw["capture"]),
    )


def _earlier(number: int, turn_id: str, small: bytes, body: bytes) -> EarlierTurn:
    turn = msgspec.json.decode(small, type=Light)
    raw = _parts(body)
    return EarlierTurn(
        number=number,
        turn_id=turn_id,
        path=turn.path,
        prompt=turn.prompt,
        reply=turn.reply,
        request=raw["request"],
        response=raw["response"],
        release_id=turn.release_id,
        received_at=turn.received_at,
        completed_at=turn.completed_at,
        capture=cast("Capture | None", raw["capture"]),
    )


def _parts(body: bytes) -> dict[str, Any]:
    """Request, response and capture as raw JSON, spliced into the record without being parsed."""
    if not body:
        return {"request": None, "response": None, "capture": None}
    return cast("dict[str, Any]", msgspec.json.decode(body, type=dict[str, msgspec.Raw]))


def next_state(parsed: ParsedRequest, plan: Plan, result: Result, turn: Light) -> list[Message]:
    """Every message that follows the reply in the request that answers it."""
    messages = list(parsed.messages)
    users = frozenset(turn.users)
    if result.level == "dropped":
        return state_of(messages[-1:])
    if result.level == "bridge" and result.at >= 0 and not plan.slots[result.at : result.at + 1]:
        return _after_summary(messages)
    if result.at > 0:
        said = [i for i, m in enumerate(messages) if m.role == "assistant" and _counts(m)]
        return state_of(messages[said[-1 - result.at] + 1 :], users)
    return state_of(tail(messages), users)


def _counts(message: ChatMessage) -> bool:
    found = block(message)
    return bool(found.text or found.calls or found.media)


def _after_summary(messages: list[ChatMessage]) -> list[Message]:
    """The newest user message of a compacted history; where it holds the summary too, what follows in it."""
    rest = state_of(tail(messages))
    return rest[-1:] if rest else rest


def classified(
    record: TrafficRaw, identity: Identity, parsed: ParsedRequest, plan: Plan, result: Result
) -> Iterator[ExchangeClassified]:
    """One line for the exchange, and one for each earlier line that a late binding corrects."""
    yield ExchangeClassified(
        exchange_id=record.exchange_id,
        scenario=record.scenario,
        tenant=record.tenant,
        exchange_class=cast("Any", result.kind),
        session_id=result.session,
        turn_id=result.turn or None,
        rule=rule_of(identity.tagged, identity.session, result.turn_session, result.level) if result.turn else None,
        confidence=confidence(result.level, result.narrowed) if result.turn else 0.0,
        reason=result.reason,
        dialect=parsed.dialect,
        tagged=identity.tagged,
        hinted=identity.hinted,
        captured=record.capture is not None,
        at=record.received_at,
        gap_seconds=result.gap if result.gap >= 0 and (result.turn or result.reason == "expired") else None,
        expired_sessions=result.expired,
        evicted_sessions=result.evicted,
    )
    for one in result.late:
        other = msgspec.json.decode(one.answer, type=Answer)
        yield ExchangeClassified(
            exchange_id=other.exchange_id,
            scenario=record.scenario,
            tenant=record.tenant,
            exchange_class="main",
            session_id=result.session,
            turn_id=record.exchange_id,
            rule=rule_of(other.tagged, other.session, identity.session, one.level),
            confidence=confidence(one.level, False),
            reason="matched",
            dialect=other.dialect,
            tagged=other.tagged,
            hinted=other.hinted,
            captured=other.captured,
            at=other.received_at,
            gap_seconds=other.received_at - record.completed_at,
        )


__all__ = ["Answer", "Light", "answer", "bindings", "block", "classified", "heavy", "light", "lines", "next_state"]
