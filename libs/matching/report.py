"""Counts of an offline run, and its scores against labels. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from libs.contracts import ExchangeClassified, TurnMatched

MAIN = ("main", "retry", "regeneration", "branch")


@dataclass(slots=True)
class Report:
    """What a run made of its exchanges. `answerable` leaves out side calls and openings."""

    exchanges: int = 0
    unreadable: int = 0
    classes: Counter[str] = field(default_factory=Counter)
    rules: Counter[str] = field(default_factory=Counter)
    levels: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    evidence: Counter[str] = field(default_factory=Counter)
    dialects: Counter[str] = field(default_factory=Counter)
    gaps: list[float] = field(default_factory=list)
    expired_sessions: int = 0
    evicted_sessions: int = 0

    def add(self, bindings: Iterable[TurnMatched], classified: Iterable[ExchangeClassified], level: str) -> None:
        """Count what one record gave."""
        for one in classified:
            self.exchanges += 1
            self.classes[one.exchange_class] += 1
            self.reasons[one.reason] += 1
            self.dialects[one.dialect] += 1
            self.expired_sessions += one.expired_sessions
            self.evicted_sessions += one.evicted_sessions
            if one.gap_seconds is not None:
                self.gaps.append(one.gap_seconds)
        for binding in bindings:
            self.evidence[binding.evidence] += 1
            if binding.evidence == "next_state":
                self.rules[binding.rule] += 1
                self.levels[level] += 1

    def as_dict(self, ttl_seconds: float) -> dict[str, Any]:
        """Plain JSON, keys sorted by count."""
        gaps = sorted(self.gaps)
        matched = self.reasons["matched"]
        open_reasons = ("first_request", "side_thread")
        answerable = sum(self.classes[c] for c in MAIN) - self.reasons["first_request"]
        return {
            "exchanges": self.exchanges,
            "unreadable": self.unreadable,
            "match_rate": round(matched / answerable, 4) if answerable else None,
            "classes": dict(self.classes.most_common()),
            "rules": dict(self.rules.most_common()),
            "evidence_in_transcript": dict(self.levels.most_common()),
            "unmatched": {r: n for r, n in self.reasons.most_common() if r != "matched"},
            "unmatched_that_answer": {
                r: n for r, n in self.reasons.most_common() if r in ("ambiguous", "expired", "reply_not_served")
            },
            "openings_and_side_threads": {r: self.reasons[r] for r in open_reasons if self.reasons[r]},
            "evidence": dict(self.evidence.most_common()),
            "dialects": dict(self.dialects.most_common()),
            "gap_seconds": {"p50": _at(gaps, 0.5), "p99": _at(gaps, 0.99), "longest": _at(gaps, 1.0)},
            "ttl_seconds": ttl_seconds,
            "ttl_cuts_off_answers": self.reasons["expired"],
            "expired_sessions": self.expired_sessions,
            "evicted_sessions": self.evicted_sessions,
        }


def _at(ordered: list[float], share: float) -> float | None:
    return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))], 3) if ordered else None


@dataclass(frozen=True, slots=True)
class Scores:
    """Precision: correct bindings / bindings. Recall: correct bindings / main requests that answer a served reply."""

    answers: int
    bound: int
    correct: int
    classed: int
    class_correct: int

    def as_dict(self) -> dict[str, Any]:
        return {
            "answers": self.answers,
            "bound": self.bound,
            "correct": self.correct,
            "precision": _share(self.correct, self.bound),
            "recall": _share(self.correct, self.answers),
            "main_side": _share(self.class_correct, self.classed),
        }


def score(pairs: set[tuple[str, str]], classes: dict[str, str], labels: list[dict[str, Any]]) -> Scores:
    """Compare bindings (turn, answer) and classes with labels (fields exchange_id, kind, answers)."""
    known = {label["exchange_id"]: label for label in labels}
    truth = {
        (label["answers"], label["exchange_id"])
        for label in labels
        if label["kind"] == "main" and label["answers"] in known
    }
    ours = {pair for pair in pairs if pair[1] in known}
    classed = [i for i in classes if i in known]
    return Scores(
        answers=len(truth),
        bound=len(ours),
        correct=len(ours & truth),
        classed=len(classed),
        class_correct=sum((known[i]["kind"] == "main") == (classes[i] in MAIN) for i in classed),
    )


def _share(part: int, whole: int) -> float | None:
    return round(part / whole, 4) if whole else None
