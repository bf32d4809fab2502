"""The matcher: a record in, bindings and one classification out. All I/O is the state's one `apply`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import msgspec

from libs.contracts import ExchangeClassified, TrafficRaw, TurnMatched
from libs.dialects import ParsedRequest, ParsedResponse, parse_request, parse_response, partition_key
from libs.dialects.hints import retry_count
from libs.errors import ContractError
from libs.matching import facts, records
from libs.matching.canonical import SPECIFIC, apart, blocks, chain
from libs.matching.classes import ask_texts, kind_of
from libs.matching.identity import Identity, identify
from libs.matching.patterns import person_words
from libs.matching.plan import Kind, Limits, Plan, Result


class StateStore(Protocol):
    """Where exchanges are remembered. One call is atomic and, in Redis, one round trip."""

    async def apply(self, plan: Plan, limits: Limits) -> Result:
        """Bind the exchange and remember it; the same plan again gives the same result."""
        ...


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one record gives: bindings (its own, late ones and implicit ones), and its class."""

    bindings: tuple[TurnMatched, ...]
    classified: tuple[ExchangeClassified, ...]
    result: Result


class Matcher:
    """Matches records against a state. Records of one order key (see `order_key`) must be given one after another."""

    def __init__(self, store: StateStore, limits: Limits | None = None) -> None:
        self._store = store
        self._limits = limits or Limits()

    async def match(self, record: TrafficRaw) -> Outcome:
        """Match one record. Never raises for what a client sent; the state's own errors pass through."""
        identity = identify(record)
        parsed, response = read(record)
        plan = plan_of(record, identity, parsed, response)
        result = await self._store.apply(plan, self._limits)
        return Outcome(
            bindings=tuple(records.bindings(record, identity, parsed, plan, result)),
            classified=tuple(records.classified(record, identity, parsed, plan, result)),
            result=result,
        )


def order_key(record: TrafficRaw) -> str:
    """Records with the same key are matched in the order they were read: their partition key."""
    return partition_key(record)


def read(record: TrafficRaw) -> tuple[ParsedRequest, ParsedResponse]:
    """Request and response in common terms; what carries no generation, or cannot be read, as an empty request."""
    try:
        parsed = parse_request(record)
    except ContractError:
        return ParsedRequest(dialect="unknown", messages=()), ParsedResponse(dialect="unknown", choices=())
    try:
        return parsed, parse_response(record)
    except ContractError:  # the request still answers an earlier reply
        return parsed, ParsedResponse(dialect=parsed.dialect, choices=())


def plan_of(record: TrafficRaw, identity: Identity, parsed: ParsedRequest, response: ParsedResponse) -> Plan:
    """Everything the state needs, from the record alone."""
    keys = facts.Keys(identity)
    parts, texts = blocks(parsed.messages)
    where = facts.slot_positions(parts)
    at = chain(parts, (*where, len(parts) - 1, len(parts)))
    kind, reason = kind_of(record, parsed, identity)
    run, after = facts.newest_run(parsed.messages)
    history = any(m.role == "assistant" for m in parsed.messages)
    replies = [c for c in response.choices if not c.empty]
    system = "\n".join(m.text for m in parsed.messages if m.role == "system")
    slots = facts.slots(keys, parts, at, texts, where)
    openings = (person_words(m.text) for m in parsed.messages if m.role == "user")
    own_lines, own_heads = facts.reply_lines(keys, replies, 8 if kind == "compaction" else 2)
    empty = not parts and not parsed.previous_response_id
    newest = records.state_of(records.tail(parsed.messages))
    return Plan(
        id=record.exchange_id,
        slot=identity.slot,
        now=record.received_at,
        done=record.completed_at,
        delivered=bool(replies),
        outcome=record.outcome,
        session=identity.session,
        tagged=identity.tagged,
        kind=kind,
        reason=reason,
        retries=retry_count(record.headers),
        same="" if empty else facts.same_key(keys, at[len(parts)], parsed.previous_response_id),
        dropped=facts.dropped_keys(keys, parsed.messages, parts),
        previous=keys.of("response", apart(parsed.previous_response_id)) if parsed.previous_response_id else "",
        slots=slots,
        bridge=facts.bridge_lines(keys, parsed),
        unless=facts.text_lines(keys, ask_texts(parsed)) if kind == "compaction" else [],
        spawn=[] if history else facts.spawn_keys(keys, openings),
        bare=not history,
        person=any(m.role == "user" and person_words(m.text) for m in after[-1:]),
        results=any(m.role == "tool" for m in after),
        prompt=keys.of("prompt", apart(system, *sorted(parsed.tool_names))),
        seen=sorted(facts.ids_of([*run, *after])),
        ids=sorted(facts.ids_of(replies) | ({response.id} if response.id else set())),
        calls=any(c.tool_calls for c in replies),
        keys=facts.reply_keys(keys, parts, at, response),
        own_cut=facts.cut_keys(keys, parts, response, record.outcome),
        own_lines=own_lines,
        own_heads=own_heads,
        own_spawns=facts.spawn_keys(keys, records.call_texts(replies, SPECIFIC)),
        own_response=keys.of("response", apart(response.id)) if parsed.dialect == "responses" and response.id else "",
        brought=facts.brought(parts),
        captured=record.capture is not None,
        light=msgspec.json.encode(records.light(record, parsed, response, newest)),
        heavy=records.heavy(record),
        answer=msgspec.json.encode(records.answer(record, identity, parsed, newest)),
    )


__all__ = ["Kind", "Matcher", "Outcome", "StateStore", "plan_of", "read"]
