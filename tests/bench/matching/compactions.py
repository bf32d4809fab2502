"""Compactions put into a labelled corpus: a summary call is inserted, and from then on the summary stands in."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from tests.bench.matching import edits
from tests.bench.matching.edits import Item
from tests.bench.matching.perturbations import Rows

EVERY = 4  # main requests of a conversation between two compactions
ASK = (
    "Your task is to create a detailed summary of the conversation so far.\n\n# Rules\n- Do NOT call any tools.\n"
    "- Respond with the summary only."
)


class Shape:
    """Where the summary goes. `tail`: items kept verbatim after it. `chain`: summaries made of one another in a row."""

    def __init__(self, place: str, *, tail: int = 0, chain: int = 1, repeat: bool = False) -> None:
        self.place = place
        self.tail = tail
        self.chain = chain
        self.repeat = repeat


def compacted(shape: Shape) -> Callable[[Rows], Rows]:
    """Every conversation is compacted at each EVERY-th request that ends with a person's words."""

    def run(rows: Rows) -> Rows:
        out: Rows = []
        count: dict[str, int] = defaultdict(int)
        state: dict[str, tuple[list[Item], str]] = {}  # thread -> (items replaced, summary)
        for record, label in rows:
            thread = f"{label['conversation']}/{label['thread']}"
            request = record["request"]
            items = edits.items_of(request)
            if label["kind"] != "main" or not items or request.get("previous_response_id"):
                out.append((record, label))
                continue
            count[thread] += 1
            if thread in state and not _starts(items, state[thread][0]):
                del state[thread]  # the agent cut its history itself
            if count[thread] % EVERY == 0 and edits.kind(items[-1]) == "user" and _replies(items):
                summaries, calls = _calls(record, label, items, shape, state.get(thread))
                out.extend(calls)
                state[thread] = (items[: _cut(items, shape)], summaries)
            if thread in state:
                record = _apply(record, items, shape, *state[thread])
            out.append((record, label))
        return out

    return run


def _starts(items: list[Item], head: list[Item]) -> bool:
    same = [edits.text_of(i) for i in items[: len(head)]] == [edits.text_of(i) for i in head]
    return same and len(items) > len(head)


def _replies(items: list[Item]) -> bool:
    return any(edits.kind(i) == "assistant" for i in items)


def _cut(items: list[Item], shape: Shape) -> int:
    """How many leading items the summary replaces; the newest message is never one of them."""
    end = len(items) - 1 - shape.tail
    while end > 0 and edits.kind(items[end]) == "tool":
        end -= 1
    return max(end, 0)


def _calls(
    record: dict[str, Any],
    label: dict[str, Any],
    items: list[Item],
    shape: Shape,
    former: tuple[list[Item], str] | None,
) -> tuple[str, Rows]:
    """The summary calls right before a request, and the last summary."""
    rows: Rows = []
    history = items[:-1]
    if former:
        history = _shown(record["request"], items[:-1], shape, *former)
    summary = ""
    for n in range(shape.chain):
        system = [i for i in history if edits.kind(i) == "system"]
        if n:
            history = [*system, edits.user_item(record["request"], f"Summary of the work so far:\n{summary}")]
        name = f"{record['exchange_id']}-sum{n}"
        summary = (
            f"Part {name}: the person and the assistant talked about the folder.\n"
            f"Decision {name}: the notes file stays where it is.\nNext step {name}: answer the newest question."
        )
        request = edits.with_items(record["request"], [*history, edits.user_item(record["request"], ASK)])
        at = record["received_at"] - 0.004 * (shape.chain - n) / shape.chain
        made = {
            **copy.deepcopy(record),
            "exchange_id": name,
            "request": request,
            "response": edits.response_with(request, record["path"], summary),
            "outcome": "completed",
            "received_at": at,
            "completed_at": at + 0.0005,
        }
        rows.append((made, {**label, "exchange_id": name, "kind": "compaction", "answers": None}))
    return summary, rows


def _shown(request: Any, items: list[Item], shape: Shape, head: list[Item], summary: str) -> list[Item]:
    """Items with the leading ones replaced by a summary."""
    system = [i for i in head if edits.kind(i) == "system"]
    rest = items[len(head) :]
    text = f"The conversation so far was compacted into this summary:\n\n{summary}"
    if shape.repeat:
        rest = rest[: shape.tail] + rest
    if shape.place == "assistant":
        return [*system, edits.assistant_item(request, text), *rest]
    if shape.place == "merged":
        return [*system, edits.map_text(rest[0], lambda t: f"{text}\n\n{t}"), *rest[1:]] if rest else system
    if shape.place == "last":
        return [*system, *rest, edits.user_item(request, text)]
    return [*system, edits.user_item(request, text), *rest]


def _apply(record: dict[str, Any], items: list[Item], shape: Shape, head: list[Item], summary: str) -> dict[str, Any]:
    shown = _shown(record["request"], items, shape, head, summary)
    return {**record, "request": edits.with_items(record["request"], shown)}
