"""Score a judge on labelled next states: precision of non-zero verdicts, coverage, accuracy, confusion, targets.

A row is right when its verdict is right. precision: right ones among the rows judged +1 or -1. coverage: rows judged
+1 or -1 among those labelled so; coverage_all: among all rows. Target accuracy: among the rows judged +1 or -1 whose
label names a turn (last or earlier), and where a row says which earlier turn, that one.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec

from libs.contracts import Message
from libs.contracts.lines import read_lines
from libs.errors import ContractError
from libs.feedback.judge import Ballot, NumberedTurn, Question, Verdict
from libs.feedback.votes import numbers, outcome

Target = Literal["last", "earlier", "none"]


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One labelled next state. `context` holds the messages before the reply; `target_turn` counts its assistant
    messages from 1 and may be left out."""

    id: str
    context: list[Message]
    reply: str
    next_state: list[Message]
    human: bool = True
    verdict: Verdict
    target: Target
    rejected: str = ""
    preserved: str = ""
    kind: str
    confidence: str = "high"
    session: str = ""
    language: str = ""
    split: str = ""
    target_turn: int | None = None

    def question(self, *, window: int = 8) -> Question:
        """What a judge is shown: the context's assistant messages are the numbered earlier turns."""
        turns: list[NumberedTurn] = []
        prompt: list[Message] = []
        for message in self.context:
            if message.role == "assistant":
                turns.append(NumberedTurn(len(turns) + 1, tuple(prompt), message.text))
                prompt = []
            else:
                prompt.append(message)
        return Question(tuple(prompt), self.reply, tuple(self.next_state), tuple(turns[-window:] if window else ()))


@dataclass(frozen=True, slots=True)
class Judged:
    """A row with what the judge made of it. `target` is "none" when the verdict is 0."""

    row: Row
    verdict: Verdict
    target: Target
    number: int | None
    kind: str = ""
    ground: str = ""
    abstentions: tuple[str, ...] = ()
    failed: bool = False  # too few valid votes


@dataclass(slots=True)
class Score:
    """Counts over rows; every share is null when its denominator is 0."""

    rows: int = 0
    labelled: int = 0
    covered: int = 0
    nonzero: int = 0
    right_nonzero: int = 0
    right: int = 0
    confusion: Counter[tuple[int, int]] = field(default_factory=Counter)

    def add(self, judged: Judged) -> None:
        label, got = judged.row.verdict, judged.verdict
        self.rows += 1
        self.labelled += label != 0
        self.covered += label != 0 and got != 0
        self.nonzero += got != 0
        self.right_nonzero += got != 0 and got == label
        self.right += got == label
        self.confusion[label, got] += 1

    def report(self) -> dict[str, Any]:
        return {
            "rows": self.rows,
            "precision": _share(self.right_nonzero, self.nonzero),
            "coverage": _share(self.covered, self.labelled),
            "coverage_all": _share(self.nonzero, self.rows),
            "accuracy": _share(self.right, self.rows),
            "confusion": {f"{a:+d}->{b:+d}": n for (a, b), n in sorted(self.confusion.items())},
        }


def read_rows(path: Path, *, confidence: str = "", split: str = "") -> list[Row]:
    """The rows of a JSONL file, filtered. Raises ContractError naming file, line and field."""
    found = []
    for number, line in read_lines(path):
        try:
            row = msgspec.json.decode(line, type=Row)
        except (msgspec.ValidationError, msgspec.DecodeError) as error:
            raise ContractError(f"{path}:{number}: no labelled next state: {error}") from error
        except RecursionError as error:
            raise ContractError(f"{path}:{number}: no labelled next state: nested too deeply") from error
        if (not confidence or row.confidence == confidence) and (not split or row.split == split):
            found.append(row)
    return found


def judged(row: Row, question: Question, ballots: Sequence[Ballot]) -> Judged:
    """The judge's answer on a row: of the answered turn, or of an earlier one when only that has a verdict."""
    abstentions = tuple(b.abstained for b in ballots if b.abstained)
    said = [outcome(ballots, number) for number in reversed(numbers(ballots, question))]
    strong = next((o for o in said if o.verdict), None)
    if strong is None:
        return Judged(row, 0, "none", None, abstentions=abstentions)
    target: Target = "last" if strong.number == question.number else "earlier"
    ground = next((v.reason for v in strong.votes if v.verdict == strong.verdict), "")
    return Judged(row, strong.verdict, target, strong.number, strong.kind, ground, abstentions)


def report(results: Iterable[Judged]) -> dict[str, Any]:
    """The whole report as plain JSON values."""
    total = Score()
    by: dict[str, dict[str, Score]] = {name: defaultdict(Score) for name in ("kind", "language", "split", "confidence")}
    abstentions: Counter[str] = Counter()
    targets: Counter[bool] = Counter()
    named: Counter[bool] = Counter()
    wrong = []
    failed = 0
    for result in results:
        total.add(result)
        for name, scores in by.items():
            label = getattr(result.row, name)
            if label:
                scores[label].add(result)
        abstentions.update(result.abstentions)
        failed += result.failed
        if result.verdict and result.row.target != "none":
            right = _target_right(result)
            targets[right] += 1
            if result.row.target == "earlier":
                named[right] += 1
        if result.verdict and result.verdict != result.row.verdict:
            wrong.append(
                {"id": result.row.id, "label": result.row.verdict, "got": result.verdict, "ground": result.ground}
            )
    return {
        **total.report(),
        "target_accuracy": _share(targets[True], targets.total()),
        "target_rows": targets.total(),
        "earlier_target_accuracy": _share(named[True], named.total()),
        "earlier_target_rows": named.total(),
        "abstentions": dict(abstentions),
        "too_few_votes": failed,
        **{f"per_{name}": {k: s.report() for k, s in sorted(scores.items())} for name, scores in by.items() if scores},
        "wrong": wrong,
    }


def _target_right(result: Judged) -> bool:
    if result.target != result.row.target:
        return False
    wanted = result.row.target_turn
    return result.target == "last" or wanted is None or wanted == result.number


def _share(part: int, whole: int) -> float | None:
    return round(part / whole, 4) if whole else None


def table(data: dict[str, Any]) -> str:
    """The report for people: totals first, then a line a kind."""

    def line(name: str, r: dict[str, Any]) -> str:
        shares = "".join(f"{'-' if r[k] is None else f'{r[k]:.3f}':>11}" for k in ("precision", "coverage", "accuracy"))
        return f"{name:<24}{r['rows']:>6}{shares}   {' '.join(f'{k}:{n}' for k, n in r['confusion'].items())}"

    lines = [
        f"{'':<24}{'rows':>6}{'precision':>11}{'coverage':>11}{'accuracy':>11}   label->verdict",
        line("all", data),
    ]
    for group in ("per_kind", "per_language", "per_split", "per_confidence"):
        lines += [line(f"  {name}", r) for name, r in data.get(group, {}).items()]
    lines.append(
        f"target right {data['target_accuracy']} of {data['target_rows']}, "
        f"earlier turns {data['earlier_target_accuracy']} of {data['earlier_target_rows']}"
    )
    lines.append(
        f"abstained votes {data['abstentions'] or 'none'}; too few valid votes on {data['too_few_votes']} rows"
    )
    lines += [f"wrong: {w['id']} label {w['label']:+d} got {w['got']:+d}: {w['ground'][:70]}" for w in data["wrong"]]
    return "\n".join(lines)
