"""Perturbations of a labelled corpus. Each takes rows (record, label) and gives rows with the same truth.

A label's `answers` stays what it was: a binding is correct when it names that reply. `still` says whether that reply,
or a served summary that covers it, is still in the request: recall is asked for only there.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any

from tests.bench.matching import edits
from tests.bench.matching.edits import Item

Row = tuple[dict[str, Any], dict[str, Any]]
Rows = list[Row]
Change = Callable[[list[Item], dict[str, Any]], list[Item]]

_ID_BODY = ("metadata", "user", "prompt_cache_key", "client_metadata", "safety_identifier", "session_id", "store")
_ID_HEADERS = ("user-agent", "x-stainless-retry-count")


def each_request(rows: Rows, change: Change, *, main_only: bool = True) -> Rows:
    """Apply a change to the items of every main request."""
    replies = {record["exchange_id"]: _reply_pieces(record["response"]) for record, _ in rows}
    out = []
    for record, label in rows:
        items = edits.items_of(record["request"])
        if items and (label["kind"] == "main" or not main_only):
            changed = change(copy.deepcopy(items), record)
            pieces = replies.get(label["answers"] or "", [])
            lost = _holds(items, pieces) and not _holds(changed, pieces)
            stateful = bool(record["request"].get("previous_response_id"))
            left_out = label["answers"] != label["transcript_last"] and not stateful
            record = {**record, "request": edits.with_items(record["request"], changed)}
            label = {**label, "still": label.get("still", True) and not lost and not left_out}
        out.append((record, label))
    return out


def _reply_pieces(response: Any) -> list[str]:
    """The longest texts of a reply, without white space: what shows that it is still in a request."""
    found: list[str] = []
    fields = frozenset({"id", "call_id", "model", "object", "role", "type", "signature", "thinking", "name"})
    edits.deep(response, lambda t: found.append(t) or t, skip=fields)  # type: ignore[func-returns-value]
    lines = [_squeezed(line) for text in found for line in text.split("\n")]
    return sorted((line for line in lines if len(line) > 12), key=len)[-2:]


def _holds(items: list[Item], pieces: list[str]) -> bool:
    found: list[str] = []
    edits.deep(items, lambda t: found.append(_squeezed(t)) or t)  # type: ignore[func-returns-value]
    return any(piece in text for piece in pieces for text in found)


def _squeezed(text: str) -> str:
    return re.sub(r"[\s\\\"]", "", text)


def history(change: Callable[[Item], Item]) -> Callable[[Rows], Rows]:
    """Change every assistant item of the history."""
    return lambda rows: each_request(
        rows, lambda items, _: [change(i) if edits.kind(i) == "assistant" else i for i in items]
    )


def no_ids(rows: Rows) -> Rows:
    """Every id that a client sends is gone."""
    out = []
    for record, label in rows:
        headers = {k: v for k, v in record["headers"].items() if k in _ID_HEADERS}
        request = record["request"]
        if isinstance(request, dict):
            request = {k: v for k, v in request.items() if k not in _ID_BODY}
        out.append(({**record, "headers": headers, "request": request}, label))
    return out


def window(size: int) -> Callable[[Rows], Rows]:
    """Only the newest `size` messages beside the system prompt; never starting with a result whose call is gone."""

    def change(items: list[Item], _: dict[str, Any]) -> list[Item]:
        system = [i for i in items if edits.kind(i) == "system"]
        rest = [i for i in items if edits.kind(i) != "system"]
        kept = rest[-size:]
        while len(kept) > 1 and edits.kind(kept[0]) == "tool":
            kept = kept[1:]
        return system + kept

    return lambda rows: each_request(rows, change)


def trimmed(item: Item) -> Item:
    return edits.map_text(item, lambda t: t.strip())


def no_reasoning(item: Item) -> Item:
    item = {k: v for k, v in item.items() if k not in ("reasoning_content", "reasoning", "thinking")}
    if isinstance(item.get("content"), list):
        item["content"] = [p for p in item["content"] if not (isinstance(p, dict) and p.get("type") == "thinking")]
    return edits.map_text(item, lambda t: re.sub(r"<think>.*?</think>", "", t, flags=re.DOTALL))


def moved_reasoning(item: Item) -> Item:
    """Reasoning that came in its own field goes back inside the text, and the other way round."""
    thought = "I look first, then I answer."
    if edits.text_of(item):
        return edits.map_text(item, lambda t: f"<think>\n{thought}\n</think>\n\n" + t)
    return {**item, "reasoning_content": thought} if item.get("role") == "assistant" else item


def respaced(item: Item) -> Item:
    for call in edits.calls(item):
        if isinstance(call.get("arguments"), str):
            call["arguments"] = edits.respaced(call["arguments"])
        elif isinstance(call.get("input"), dict):
            call["input"] = dict(reversed(call["input"].items()))
    return item


def renamed_ids(rows: Rows) -> Rows:
    """Ids of messages and calls are given anew in every request."""
    fields = ("id", "call_id", "tool_call_id", "tool_use_id")

    def rename(value: Any, salt: str) -> Any:
        if isinstance(value, list):
            return [rename(v, salt) for v in value]
        if isinstance(value, dict):
            return {
                k: f"{salt}{v}" if k in fields and isinstance(v, str) else rename(v, salt) for k, v in value.items()
            }
        return value

    return each_request(rows, lambda items, record: rename(items, record["exchange_id"]), main_only=False)


def users_split(rows: Rows) -> Rows:
    """A person's message comes back as two in a row."""

    def change(items: list[Item], record: dict[str, Any]) -> list[Item]:
        out: list[Item] = []
        for item in items[:-1]:
            text = edits.text_of(item)
            head, dot, rest = text.partition(". ")
            if edits.kind(item) == "user" and dot and isinstance(item.get("content"), str):
                out += [edits.user_item(record["request"], head + "."), edits.user_item(record["request"], rest)]
            else:
                out.append(item)
        return out + items[-1:]

    return each_request(rows, change)


def images_dropped(rows: Rows) -> Rows:
    """Every user message held a picture; in the history it is gone."""
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}

    def change(items: list[Item], record: dict[str, Any]) -> list[Item]:
        last = items[-1]
        if edits.kind(last) == "user" and isinstance(last.get("content"), str):
            last = {**last, "content": [{"type": "text", "text": last["content"]}, picture]}
        return [*items[:-1], last]

    return each_request(rows, change)


def surrogates(rows: Rows) -> Rows:
    """Replies were served with a lone surrogate and a null byte, which the clients took out or replaced."""
    out = []
    for number, (record, label) in enumerate(rows):
        skip = frozenset({"id", "call_id", "model", "role", "type", "name", "arguments", "object", "status"})
        response = edits.deep(record["response"], lambda t: t + "\ufffd\x00" if len(t) > 20 else t, skip=skip)
        out.append(({**record, "response": response}, {**label, "number": number}))
    return out


def system_stamped(rows: Rows) -> Rows:
    """The system prompt holds the time, so it differs in every request."""

    def change(items: list[Item], record: dict[str, Any]) -> list[Item]:
        stamp = f"Current time: {record['received_at']}"
        return [{"role": "system", "content": stamp}, *items]

    out = each_request(rows, change)
    return [
        ({**r, "request": {**r["request"], "system": f"{r['request']['system']} {r['received_at']}"}}, label)
        if isinstance(r["request"], dict) and isinstance(r["request"].get("system"), str)
        else (r, label)
        for r, label in out
    ]


def reminders(rows: Rows) -> Rows:
    """Reminders that differ in every request stand in the middle of the history."""

    def change(items: list[Item], record: dict[str, Any]) -> list[Item]:
        note = f"<system-reminder>\nTodo list changed at {record['received_at']}\n</system-reminder>"
        out = []
        for i, item in enumerate(items):
            out.append(item)
            if edits.kind(item) == "user" and i % 2:
                out.append(edits.user_item(record["request"], note))
        return out

    return each_request(rows, change)


def newest_stamped(rows: Rows) -> Rows:
    """A date stamp before, and a format reminder after, the newest user message only."""

    def change(items: list[Item], record: dict[str, Any]) -> list[Item]:
        if edits.kind(items[-1]) != "user":
            return items
        after = "\n\nReply in the format that was agreed on at the start, with whole files."
        stamp = "[Sun 2026-11-29 13:35 UTC] "
        return [*items[:-1], edits.map_text(items[-1], lambda t: stamp + t + after)]

    return each_request(rows, change)


def trailing_context(rows: Rows) -> Rows:
    """A block of context moves to the end on every request."""

    def change(items: list[Item], record: dict[str, Any]) -> list[Item]:
        if edits.kind(items[-1]) != "user":
            return items
        return [*items, edits.user_item(record["request"], "Open files:\nREADME.md (3 lines)\nsrc/main.py (1 line)")]

    return each_request(rows, change)


def old_results_cleared(rows: Rows) -> Rows:
    """Older tool results are replaced by a note."""

    def change(items: list[Item], _: dict[str, Any]) -> list[Item]:
        cut = max(0, len(items) - 4)
        note = "[Old tool result content cleared]"
        return [_cleared(i, note) if edits.kind(i) == "tool" and n < cut else i for n, i in enumerate(items)]

    return each_request(rows, change)


def _cleared(item: Item, note: str) -> Item:
    if isinstance(item.get("content"), list):
        parts = [{**p, "content": note} if p.get("type") == "tool_result" else p for p in item["content"]]
        return {**item, "content": parts}
    return {**item, "output" if "output" in item else "content": note}


def two_copies(rows: Rows) -> Rows:
    """The corpus a second time at the same time under the same tenant: same people's words, other replies."""

    def turn(text: str) -> str:
        found = re.compile(r"\\u[0-9a-f]{4}|\d")
        return found.sub(lambda m: m[0] if m[0][0] == "\\" else "3456789012"[int(m[0])], text)

    fields = frozenset({"role", "type", "name", "model", "object", "status", "finish_reason", "stop_reason"})
    copies = []
    for record, label in rows:
        other = {
            **record,
            "request": _body_turned(record["request"], turn, fields),
            "response": edits.deep(record["response"], turn, skip=fields),
        }
        copies.append(_renamed(other, label, "copy-"))
    return rows + _later(copies)


def _body_turned(request: Any, change: Callable[[str], str], fields: frozenset[str]) -> Any:
    """Items changed; what the person or the harness wrote without quoting a reply has no digit of one."""
    if not isinstance(request, dict):
        return request
    out = dict(request)
    for name in ("messages", "input", "previous_response_id"):
        if name in out:
            out[name] = edits.deep(out[name], change, skip=fields)
    return out


def two_tenants(rows: Rows) -> Rows:
    """Exactly the same traffic at the same time under a second tenant."""
    return rows + _later([_renamed({**r, "tenant": "other"}, label, "other-") for r, label in rows])


def _renamed(record: dict[str, Any], label: dict[str, Any], prefix: str) -> Row:
    last = label["transcript_last"]
    changed = {
        "exchange_id": prefix + label["exchange_id"],
        "answers": prefix + label["answers"] if label["answers"] else None,
        "transcript_last": prefix + last if last else None,
    }
    return {**record, "exchange_id": prefix + record["exchange_id"]}, {**label, **changed}


def _later(rows: Rows, by: float = 0.0003) -> Rows:
    """All of it a little later, so that the two interleave exchange by exchange."""
    return [
        ({**r, "received_at": r["received_at"] + by, "completed_at": r["completed_at"] + by}, label)
        for r, label in rows
    ]
