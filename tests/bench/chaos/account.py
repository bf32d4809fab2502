"""What became of every accepted exchange, from the topics alone. It shares no code with what it checks.

Ends of an exchange: trained (its feedback is in an optimizer step), dropped (by the judge, the batcher, the trainer or
the gateway, with a reason), unmatched (with a reason), dead-lettered, answered by nobody. Whatever has no end is lost.
"""

from __future__ import annotations

import base64
import json
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from libs.streams.types import StreamRecord
from tests.bench.chaos.load import Accepted

TOPICS = (
    "traffic.raw",
    "exchanges.classified",
    "turns.matched",
    "turns.judged",
    "training.batches",
    "policy.releases",
    "dead.letters",
)


@dataclass
class Account:
    """The counts of runs/chaos.json."""

    accepted: int = 0
    matched: int = 0
    unmatched_counted: int = 0
    dead_lettered: int = 0
    trained_once: int = 0
    trained_twice: int = 0
    dropped_counted: int = 0
    unanswered: int = 0
    misbound: int = 0
    lost: int = 0
    lost_where: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    reasons: Counter[str] = field(default_factory=Counter)
    records: dict[str, int] = field(default_factory=dict)


@dataclass
class Facts:
    """The topics, joined by id."""

    raw: dict[str, Any] = field(default_factory=dict)
    classified: dict[str, Any] = field(default_factory=dict)
    matched: dict[str, list[Any]] = field(default_factory=lambda: defaultdict(list))  # by turn id
    judged: dict[tuple[str, str], list[Any]] = field(default_factory=lambda: defaultdict(list))
    batches_of: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))  # feedback id -> batch ids
    ended: dict[str, Any] = field(default_factory=dict)  # batch id -> its event
    trained_in: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))  # feedback id -> release ids
    dropped: dict[str, str] = field(default_factory=dict)  # feedback id -> reason
    gone: dict[str, str] = field(default_factory=dict)  # exchange id -> reason, by the gateway
    dead: dict[str, str] = field(default_factory=dict)  # any id in a dead letter's record -> reason
    letters: set[str] = field(default_factory=set)  # "<topic>-<partition>-<offset>"


def facts_of(records: Iterable[StreamRecord], logs: Iterable[Path]) -> Facts:
    """Join all records of all topics, and what batcher and gateway logged as dropped."""
    facts = Facts()
    for record in records:
        try:
            value = json.loads(record.value)
            _take(facts, record.topic, value)
        except (ValueError, KeyError, TypeError):
            continue  # poison; the dead letters say what became of it
    for path in logs:
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else ():
            _take_log(facts, line)
    return facts


def _take(facts: Facts, topic: str, value: Any) -> None:
    if topic == "traffic.raw":
        facts.raw[value["exchange_id"]] = value
    elif topic == "exchanges.classified":
        facts.classified[value["exchange_id"]] = value
    elif topic == "turns.matched":
        facts.matched[value["turn_id"]].append(value)
    elif topic == "turns.judged":
        facts.judged[value["turn_id"], value["answered_by"]].append(value)
    elif topic == "training.batches":
        for sample in value["samples"]:
            facts.batches_of[sample["feedback_id"]].add(value["batch_id"])
    elif topic == "policy.releases":
        if value["batch_id"]:
            facts.ended[value["batch_id"]] = value
        for feedback_id in value["trained"]:
            facts.trained_in[feedback_id].add(value["release_id"])  # the same batch stepped twice has two
        facts.dropped |= value["dropped"]
    else:
        facts.letters.add(value["dead_letter_id"])
        _take_dead(facts, value)


def _take_dead(facts: Facts, letter: Any) -> None:
    try:
        inner = json.loads(base64.b64decode(letter["value"]))
    except ValueError:
        return
    if isinstance(inner, dict):
        for name in ("exchange_id", "turn_id", "feedback_id", "batch_id"):
            if isinstance(inner.get(name), str):
                facts.dead[inner[name]] = letter["reason"]


def _take_log(facts: Facts, line: str) -> None:
    try:
        entry = json.loads(line)
    except ValueError:
        return
    if entry.get("event") == "dropped" and "feedback" in entry and entry["reason"] != "repeated":
        facts.dropped[entry["feedback"]] = entry["reason"]
    elif entry.get("event") == "record_dropped":
        facts.gone[entry["exchange_id"]] = entry["reason"]


def account(accepted: Iterable[Accepted], facts: Facts) -> Account:
    """Give every accepted exchange its end."""
    found = Account()
    answered_by = {a.answers: a for a in accepted if a.answers is not None}
    for exchange in accepted:
        found.accepted += 1
        end = _end_of(exchange, answered_by.get(exchange.exchange_id), facts, found)
        kind, _, reason = end.partition(":")
        found.reasons[end] += 1
        if kind == "lost":
            found.lost += 1
            found.lost_where[reason].append(exchange.exchange_id)
        elif kind == "unmatched":
            found.unmatched_counted += 1
        elif kind == "dead_lettered":
            found.dead_lettered += 1
        elif kind == "unanswered":
            found.unanswered += 1
        elif kind == "dropped":
            found.dropped_counted += 1
        elif kind == "trained":
            found.trained_once += 1
    found.trained_twice = sum(len(steps) > 1 for steps in facts.trained_in.values())
    return found


def _end_of(exchange: Accepted, answer: Accepted | None, facts: Facts, found: Account) -> str:
    """ "<kind>:<reason>" of one exchange's reply."""
    ids = exchange.exchange_id
    if ids in facts.gone:
        return f"dropped:gateway_{facts.gone[ids]}"
    if ids in facts.dead:
        return f"dead_lettered:{facts.dead[ids]}"
    if ids not in facts.raw:
        return "lost:not_recorded"
    if ids not in facts.classified:
        return "lost:not_classified"
    if answer is None:
        return "unanswered:"
    if answer.exchange_id in facts.gone:
        return f"unmatched:answer_{facts.gone[answer.exchange_id]}"
    bound = [m for m in facts.matched.get(ids, ()) if m["answered_by"] == answer.exchange_id] or facts.matched.get(ids)
    if not bound:
        return _unbound(answer, facts)
    found.matched += 1
    if any(m["reply"].strip() != exchange.reply.strip() for m in bound):
        found.misbound += 1
    verdicts = facts.judged.get((ids, bound[0]["answered_by"]))
    if not verdicts:
        return f"dead_lettered:{facts.dead[ids]}" if ids in facts.dead else "lost:not_judged"
    ends = [_end_of_feedback(verdict, facts) for verdict in verdicts]
    return _worst(ends)


def _worst(ends: list[str]) -> str:
    order = ("lost", "trained", "dead_lettered", "dropped")
    return min(ends, key=lambda end: order.index(end.partition(":")[0]))


def _unbound(answer: Accepted, facts: Facts) -> str:
    if answer.exchange_id in facts.dead:
        return f"unmatched:answer_{facts.dead[answer.exchange_id]}"
    classified = facts.classified.get(answer.exchange_id)
    if classified is None:
        return "lost:answer_not_classified"
    if classified["turn_id"] is not None:
        # The client sent the same request again after a break: bound to the other recording of that reply.
        return "unmatched:bound_to_its_retry"
    return f"unmatched:{classified['reason']}"


def _end_of_feedback(verdict: Any, facts: Facts) -> str:
    feedback_id = verdict["feedback_id"]
    if verdict["disposition"] == "dropped":
        return f"dropped:judge_{verdict['reason']}"
    if facts.trained_in.get(feedback_id):
        return "trained:"
    if feedback_id in facts.dead:
        return f"dead_lettered:{facts.dead[feedback_id]}"
    batches = facts.batches_of.get(feedback_id, set())
    for batch_id in batches:
        if batch_id in facts.dead:
            return f"dead_lettered:{facts.dead[batch_id]}"
    if feedback_id in facts.dropped:
        return f"dropped:{facts.dropped[feedback_id]}"
    if not batches:
        return "lost:not_batched"
    open_ = [batch_id for batch_id in batches if batch_id not in facts.ended]
    if len(open_) == len(batches):
        return "lost:batch_without_end"
    ended = next(facts.ended[batch_id] for batch_id in batches if batch_id in facts.ended)
    return f"dropped:batch_{ended['event']}"
