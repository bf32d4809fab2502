"""The perturbation suite: every perturbation of a corpus matched offline and scored against its labels."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from libs.contracts import TrafficRaw
from libs.matching.__main__ import replay
from libs.matching.plan import Limits
from libs.matching.reading import read_record
from libs.matching.report import MAIN
from tests.bench.matching import perturbations as p
from tests.bench.matching.compactions import Shape, compacted
from tests.bench.matching.perturbations import Rows

Perturbation = Callable[[Rows], Rows]


def both(*steps: Perturbation) -> Perturbation:
    """One perturbation after another."""

    def run(rows: Rows) -> Rows:
        for step in steps:
            rows = step(rows)
        return rows

    return run


SUITE: dict[str, Perturbation] = {
    "as recorded": lambda rows: rows,
    "ids lost": p.no_ids,
    **{f"window {n}, ids lost": both(p.no_ids, p.window(n)) for n in (2, 3, 4, 6, 10)},
    "window 4, ids kept": p.window(4),
    "compaction, summary as user, tail 2": both(p.no_ids, compacted(Shape("user", tail=2))),
    "compaction, summary as user, no tail": both(p.no_ids, compacted(Shape("user"))),
    "compaction, summary as assistant, no tail": both(p.no_ids, compacted(Shape("assistant"))),
    "compaction, summary as assistant, tail 2": both(p.no_ids, compacted(Shape("assistant", tail=2))),
    "compaction, summary merged, no tail": both(p.no_ids, compacted(Shape("merged"))),
    "compaction, summary last": both(p.no_ids, compacted(Shape("last"))),
    "three compactions in a row, no tail": both(p.no_ids, compacted(Shape("user", chain=3))),
    "compaction, repeated tail": both(p.no_ids, compacted(Shape("user", tail=2, repeat=True))),
    "compaction, no tail, ids kept": compacted(Shape("user")),
    "replies trimmed": both(p.no_ids, p.history(p.trimmed)),
    "reasoning removed": both(p.no_ids, p.history(p.no_reasoning)),
    "reasoning moved": both(p.no_ids, p.history(p.moved_reasoning)),
    "arguments re-spaced and re-ordered": both(p.no_ids, p.history(p.respaced)),
    "message and call ids renamed": both(p.no_ids, p.renamed_ids),
    "user messages split in two": both(p.no_ids, p.users_split),
    "images dropped": both(p.no_ids, p.images_dropped),
    "surrogates and null bytes": both(p.no_ids, p.surrogates),
    "system prompt stamped": both(p.no_ids, p.system_stamped),
    "reminders in mid-history": both(p.no_ids, p.reminders),
    "newest message stamped and extended": both(p.no_ids, p.newest_stamped),
    "trailing context block": both(p.no_ids, p.trailing_context),
    "old tool results cleared": both(p.no_ids, p.old_results_cleared),
    "two copies interleaved, ids kept": p.two_copies,
    "two copies interleaved, ids lost": both(p.no_ids, p.renamed_ids, p.two_copies),
    "two copies interleaved, window 4, ids lost": both(p.no_ids, p.renamed_ids, p.two_copies, p.window(4)),
    "two tenants, same traffic, ids lost": both(p.no_ids, p.two_tenants),
}


def load(paths: Sequence[Path]) -> Rows:
    """Rows of traffic files `<name>.traffic.jsonl` with their `<name>.labels.jsonl` beside them."""
    rows: Rows = []
    for path in paths:
        labels = {
            label["exchange_id"]: label
            for line in path.with_name(path.name.replace(".traffic.", ".labels.")).read_text("utf-8").splitlines()
            if line.strip() and (label := json.loads(line))
        }
        for line in path.read_text("utf-8").splitlines():
            record = json.loads(line) if line.strip() else None
            if record and record["exchange_id"] in labels:
                rows.append((record, labels[record["exchange_id"]]))
    return sorted(rows, key=lambda row: row[0]["received_at"])


def measure(rows: Rows) -> dict[str, Any]:
    """Match rows offline and score them; recall only where a reply or a summary of it is still in the request."""
    records = [read_record(json.dumps(record).encode()) for record, _ in rows]
    pairs, classes, reasons = asyncio.run(_match(records))
    labels = {label["exchange_id"]: label for _, label in rows}
    truth = {(x["answers"], i) for i, x in labels.items() if x["kind"] == "main" and x["answers"] in labels}
    asked = {(t, i) for t, i in truth if labels[i].get("still", True)}
    right = sum((labels[i]["kind"] == "main") == (c in MAIN) for i, c in classes.items() if i in labels)
    wrong = sorted(pairs - truth)
    missed = sorted(asked - pairs)
    return {
        "exchanges": len(rows),
        "answers": len(asked),
        "bound": len(pairs),
        "precision": round(len(pairs & truth) / len(pairs), 4) if pairs else 1.0,
        "recall": round(len(pairs & asked) / len(asked), 4) if asked else 1.0,
        "main_side": round(right / len(classes), 4) if classes else 1.0,
        "wrong": [list(pair) for pair in wrong],
        "missed": [[turn, answer, reasons.get(answer, "")] for turn, answer in missed],
    }


async def _match(records: list[TrafficRaw]) -> tuple[set[tuple[str, str]], dict[str, str], dict[str, str]]:
    pairs: set[tuple[str, str]] = set()
    classes: dict[str, str] = {}
    reasons: dict[str, str] = {}
    async for outcome in replay(records, Limits()):
        pairs |= {(b.turn_id, b.answered_by) for b in outcome.bindings if b.evidence == "next_state"}
        for one in outcome.classified:
            classes[one.exchange_id] = one.exchange_class
            reasons[one.exchange_id] = one.reason
    return pairs, classes, reasons
