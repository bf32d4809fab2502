"""What an exchange is once its turn is chosen: main, side, a retry, a regeneration, an edit. Pure.

rules.lua is the same text for Redis; tests run both on the same traffic and compare.
"""

from __future__ import annotations

from dataclasses import dataclass

from libs.matching.choose import Candidate, Choice, View
from libs.matching.plan import Limits, Plan

THREADS = ("sub_agent", "declared_side", "side_thread")  # reasons of side calls that go on as threads of their own


@dataclass(slots=True)
class Verdict:
    """Class, kind and reason of an exchange once its turn is chosen."""

    kind: str  # as in Candidate: what later exchanges inherit
    label: str  # the exchange class
    reason: str
    turn: Candidate | None  # bound in a record
    previous: Candidate | None  # what it follows, bound or not
    repeats: str = ""
    rejects: str = ""


def classify(plan: Plan, limits: Limits, view: View, choice: Choice, delegated: bool) -> Verdict:
    """Put an exchange into its class and decide whether its binding counts."""
    found = choice.found
    if found and found.kind == "compaction":  # a summary in the reply's place: go on from what it summed up
        choice.level = "bridge"
        before = view.get(found.previous) if found.previous else None
        if before is None and plan.kind == "main" and not delegated:
            return Verdict("main", "main", "summary_without_turn", None, None)
        found = before
    if plan.kind != "main":
        lasting = "side" if plan.reason in THREADS else "once"
        return Verdict(lasting if plan.kind == "side" else plan.kind, plan.kind, plan.reason, None, found)
    if delegated:
        return Verdict("side", "side", "sub_agent", None, found)
    if found and found.kind == "once" and plan.person:
        found = (view.get(found.previous) if found.previous else None) or found  # a person does not answer a side call
    if found and found.kind in ("side", "once") and not (found.kind == "once" and plan.person):
        return Verdict(found.kind, "side", "side_thread", None, found)
    again = _same_before(plan, view)
    label, repeats, rejects = _again(plan, again, found)
    if label == "main" and found and _edited(plan, view, found):
        label, rejects = "branch", found.answered[-1]
    if found is None:
        return Verdict("main", label, choice.reason, None, None, "", rejects)
    if plan.now - found.done > limits.ttl_seconds or not view.kept(found.id):
        return Verdict("main", label, "expired", None, found)
    return Verdict("main", label, "matched", found, found, repeats, rejects)


def _same_before(plan: Plan, view: View) -> Candidate | None:
    """The newest earlier exchange with the same request."""
    if not plan.same:
        return None
    those = [c for c in view.under(plan.same) if c.id != plan.id and c.now <= plan.now]
    named = [c for c in those if c.named == plan.session]
    return named[0] if named else None


def _again(plan: Plan, again: Candidate | None, found: Candidate | None) -> tuple[str, str, str]:
    """(class, exchange whose binding is repeated, exchange whose reply was rejected) of a request seen before."""
    if again is None:
        return "main", "", ""
    turn = found.id if found else ""
    if again.bound != turn and again.previous != turn:
        return "main", "", ""  # equal words to different replies: two conversations
    lost = not again.delivered or again.outcome != "completed" or again.done > plan.now
    if lost or plan.retries > 0:
        return "retry", again.id if again.bound and again.bound == turn else "", ""
    if not turn and not plan.session:
        return "main", "", ""  # an opening that two people may share
    return "regeneration", "", again.id


def _edited(plan: Plan, view: View, found: Candidate) -> bool:
    """The reply was answered before, by other words, in the same named conversation: an edited message.

    A request that names another conversation is a fork, not an edit. Where none is named, an equal history may be
    another person's.
    """
    if not plan.session:
        return False
    other = view.get(found.answered[-1]) if found.answered else None
    if other is None or other.id == plan.id or not plan.person:
        return False
    whole = other.delivered and other.outcome == "completed" and other.done <= plan.now
    return whole and other.named == plan.session == found.named
