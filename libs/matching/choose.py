"""Which served reply a request answers: the rules in order, over what the state knows. Pure.

rules.lua is the same text for Redis; tests run both on the same traffic and compare.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from libs.matching.plan import Limits, Plan, Slot

_SERVED = 8
_HEADLESS = 3  # lines of a summary that must be there when its first line is not
MARK = 8  # characters of a digest that serve as a mark


@dataclass(slots=True)
class Candidate:
    """What is remembered of an exchange whose reply may be answered."""

    id: str
    now: float
    done: float
    delivered: bool
    outcome: str
    session: str  # the conversation's name
    named: str  # the session that the request named itself, or ""
    kind: str  # main | side | once (a side call that is no thread) | compaction
    same: str
    prompt: str
    calls: bool
    ids: list[str]
    heads: list[str]  # marks of the first lines of its reply
    brought: list[str]  # marks of the short assistant texts in its request that were not served
    served: list[str]  # marks of the short replies that were served before it in its conversation, newest first
    previous: str = ""  # the turn that it answered
    bound: str = ""  # the turn it is bound to in a record that was given out
    answered: list[str] = field(default_factory=list)  # main exchanges that answered it, oldest first


class View(Protocol):
    """What the rules read."""

    def under(self, key: str) -> Sequence[Candidate]:
        """The exchanges remembered under a key, newest first."""
        ...

    def get(self, exchange_id: str) -> Candidate | None: ...

    def kept(self, exchange_id: str) -> bool:
        """Is the exchange's request still held? What is left of an expired one cannot be given out."""
        ...

    def newest(self, session: str) -> Candidate | None:
        """The newest main turn of a session whose requests bring no history."""
        ...


@dataclass(slots=True)
class Choice:
    """The candidate whose reply is answered (None: see reason), and how it was found."""

    found: Candidate | None = None
    level: str = ""
    at: int = -1
    narrowed: bool = False
    reason: str = "first_request"
    open: int = 0  # so many of the newest slot's keys, the strongest, are still open to a turn that is read later


def waits(plan: Plan, choice: Choice) -> list[tuple[str, str]]:
    """(level, key) under which a request without a turn waits for one that is read later."""
    if plan.previous:
        return [("response", plan.previous)]
    return plan.slots[0].probes[: choice.open] if plan.slots else []


def eligible(plan: Plan, limits: Limits, one: Candidate) -> bool:
    """Could this exchange's reply have been read by the sender of the request?"""
    return (
        one.id != plan.id
        and one.delivered
        and one.now < plan.now
        and one.done <= plan.now + limits.slack_seconds
        and (not plan.same or one.same != plan.same)
    )


def settled(plan: Plan, limits: Limits, view: View) -> Plan:
    """The plan with its kind made sure: what asks for a summary, but holds one that was served, goes on from it."""
    if plan.unless and _by_lines(plan, limits, view, [plan.unless], "bridge", -1).found:
        return msgspec.structs.replace(plan, kind="main", reason="")
    return plan


def choose(plan: Plan, limits: Limits, view: View) -> Choice:
    """The strongest rule that finds exactly one reply. Ambiguity abstains."""
    if plan.previous:
        found = _pick(plan, limits, view, plan.previous, "response", -1)
        return found or Choice(reason="reply_not_served")
    for key in plan.dropped:
        found = _pick(plan, limits, view, key, "dropped", -1, lambda c: c.kind == "main")
        if found and found.found:
            return found
    choice = _by_slots(plan, limits, view)
    if choice.found is None and plan.bridge:
        level = "bridge" if plan.kind == "main" else "lines"  # a summary goes on, a side call quotes what was said
        bridged = _by_lines(plan, limits, view, [plan.bridge], level, -1)
        if bridged.found:
            return bridged
    if choice.found is None and plan.bare:
        return _bare(plan, limits, view)
    return choice


def _by_slots(plan: Plan, limits: Limits, view: View) -> Choice:
    """The newest assistant message that was served.

    A short text that was not is passed over, but only on the way to a reply whose own request brought that text along
    already: clients repeat what they put in themselves, and an unknown reply must not hide behind that.
    """
    passed: list[str] = []
    doubt = ""
    open_ = 0
    for at, slot in enumerate(plan.slots):
        found = _in_slot(plan, limits, view, slot, at)
        if at == 0:
            open_ = found.open if found else len(slot.probes)
        if found is None or found.found is None:
            doubt = doubt or ("ambiguous" if found else "")
            pieces = _by_lines(plan, limits, view, _row(plan.slots, at), "lines", at)
            found = pieces if pieces.found else None
        if found and found.found:
            known = all(mark in found.found.brought for mark in passed)
            return found if known else Choice(reason="reply_not_served", open=open_)
        if not slot.filler and not slot.mark:
            break
        if not slot.filler:
            passed.append(slot.mark)
    missing = "reply_not_served" if plan.slots else "first_request" if plan.bare else "empty_reply"
    return Choice(reason=doubt or missing, open=open_)


def served_before(plan: Plan, choice: Choice) -> list[str]:
    """Marks of short replies that the conversation was served: the same words later are no filler of the client's."""
    if choice.found is None:
        return []
    own = plan.slots[choice.at].mark if choice.at >= 0 else ""
    return list(dict.fromkeys([m for m in (own, *choice.found.served) if m]))[:_SERVED]


def _row(slots: Sequence[Slot], at: int) -> list[list[str]]:
    """The lines of a slot and of those in a row with it, newest first."""
    return [s.lines for s in slots[at:] if s.run == slots[at].run]


def _in_slot(plan: Plan, limits: Limits, view: View, slot: Slot, at: int) -> Choice | None:
    for n, (level, key) in enumerate(slot.probes):
        found = _pick(plan, limits, view, key, level, at)
        if found:
            found.open = n
            return found
    return None


def _pick(
    plan: Plan,
    limits: Limits,
    view: View,
    key: str,
    level: str,
    at: int,
    also: Callable[[Candidate], bool] = lambda _: True,
) -> Choice | None:
    """The one exchange under a key; None when there is none, a choice without `found` when several remain."""
    those = [c for c in view.under(key) if eligible(plan, limits, c) and also(c)]
    if not those:
        return None
    return _narrow(plan, those, level, at)


def _narrow(plan: Plan, those: list[Candidate], level: str, at: int) -> Choice:
    """Tell candidates apart by what does not decide by itself: ids, the session named (or that none is), kind, prompt,
    who is answered already."""
    if len(those) == 1:
        return Choice(those[0], level, at)
    tests: list[Callable[[Candidate], bool]] = [
        lambda c: any(i in plan.seen for i in c.ids),
        lambda c: c.named == plan.session,
        lambda c: c.kind == "main",
        lambda c: c.prompt == plan.prompt,
        lambda c: not c.answered,
    ]
    for test in tests:
        kept = [c for c in those if test(c)]
        if kept:
            those = kept
    one = those[0]
    if len(those) == 1 or all(c.session == one.session and c.named == one.named for c in those):
        return Choice(one, level, at, narrowed=True)
    return Choice(reason="ambiguous")


def _by_lines(plan: Plan, limits: Limits, view: View, groups: Sequence[Sequence[str]], level: str, at: int) -> Choice:
    """The exchange that most lines come from. Groups are added until one leads; a lead of one common line is none.

    Replies share stock phrases, so a reply counts only when its first line is among the lines. A summary may come back
    without its head, but then more of its lines must be there.
    """
    there = {key[:MARK] for group in groups for key in group}
    votes: dict[str, int] = {}
    known: dict[str, Candidate] = {}
    ends: list[str] = []  # those that the last known line comes from
    sure = False
    for group in groups:
        for key in group:
            under = view.under(key)
            those = [c for c in under if eligible(plan, limits, c) and _piece_of(c, there, level)]
            sure = sure or (len(those) == 1 and len(under) == 1)
            ends = ends or [c.id for c in those]
            for c in those:
                votes[c.id] = votes.get(c.id, 0) + 1
                known[c.id] = c
        lead, most = _lead(votes, known, ends)
        if not lead:
            continue
        if most >= (_HEADLESS if not _has_head(lead[0], there) else 1 if sure else 2):
            found = _narrow(plan, lead, level, at)
            if found.found:
                return found
    return Choice(reason="ambiguous" if votes else "reply_not_served")


def _piece_of(one: Candidate, there: set[str], level: str) -> bool:
    """May these lines be a piece of its reply? A bridge leads to summaries alone."""
    return one.kind == "compaction" if level == "bridge" else _has_head(one, there)


def _has_head(one: Candidate, there: set[str]) -> bool:
    return any(head in there for head in one.heads)


def _lead(votes: dict[str, int], known: dict[str, Candidate], ends: list[str]) -> tuple[list[Candidate], int]:
    """Those with most votes, newest first. Where a summary leads but the text ends with a reply, that reply does."""
    most = max(votes.values(), default=0)
    lead = [i for i, n in votes.items() if n == most]
    if all(known[i].kind == "compaction" and i not in ends for i in lead):
        replies = [i for i in ends if known[i].kind == "main" and votes[i] >= 2]
        if replies:
            most = max(votes[i] for i in replies)
            lead = [i for i in replies if votes[i] == most]
    return sorted((known[i] for i in lead), key=lambda c: (-c.now, c.id)), most


def _bare(plan: Plan, limits: Limits, view: View) -> Choice:
    """A request without history answers the newest main turn of its session, if that session never brings any."""
    newest = view.newest(plan.session) if plan.session else None
    if newest is None or not eligible(plan, limits, newest) or newest.prompt != plan.prompt:
        return Choice(reason="first_request")
    if newest.calls != plan.results:
        return Choice(reason="first_request")
    return Choice(newest, "newest", -1)
