"""From a chat completion to a ballot. Whatever cannot be read as an answer is an abstention that says why."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from libs.feedback.judge import Ballot, Judgement, Verdict
from libs.feedback.privacy import safe

_REFUSAL = re.compile(
    r"^\W*(?:i(?:'m| am) (?:sorry|unable|not able)|i can(?:'t|not)|sorry,|as an ai\b|i won't)", re.IGNORECASE
)
_THOUGHT = re.compile(r"<(think|thinking|reasoning|thought)>.*?</\1>", re.DOTALL | re.IGNORECASE)
_OPEN_THOUGHT = re.compile(r"<(?:think|thinking|reasoning|thought)>", re.IGNORECASE)
_CLOSE_THOUGHT = re.compile(r"</(?:think|thinking|reasoning|thought)>", re.IGNORECASE)
_MAX_TEXT = 300


def read_completion(body: bytes, nonce: str) -> Ballot:
    """One vote from the body of a 200 response. `nonce` is what the answer must repeat as "id"."""
    try:
        data = json.loads(body)
        choice = data["choices"][0]
        message = choice["message"]
        content = message.get("content")
    except (ValueError, KeyError, IndexError, TypeError, AttributeError):
        return Ballot(abstained="unparsable")
    tokens = _tokens(data, body)
    reason = _no_text(choice, message, content)
    if reason:
        return Ballot(abstained=reason, tokens=tokens)
    return _ballot(_text(content), nonce, str(choice.get("finish_reason") or ""), tokens)


def _no_text(choice: dict[str, Any], message: dict[str, Any], content: Any) -> str:
    if message.get("refusal") or choice.get("finish_reason") == "content_filter":
        return "refused"
    if _text(content).strip():
        return ""
    if message.get("tool_calls") or message.get("function_call"):
        return "tool_calls"
    return "truncated" if choice.get("finish_reason") == "length" else "empty"


def _ballot(text: str, nonce: str, finish: str, tokens: int) -> Ballot:
    answer = _THOUGHT.sub("", text)
    answer = _CLOSE_THOUGHT.split(answer)[-1]  # some servers leave out the opening mark
    if _OPEN_THOUGHT.search(answer):
        return Ballot(abstained="truncated", tokens=tokens)
    for found in _objects(answer):
        # Without the nonce it is no answer to this question, whatever it says: a quoted or planted one.
        if found.get("id") == nonce and (judgements := _judgements(found.get("judgements"))) is not None:
            return Ballot(judgements=tuple(judgements), tokens=tokens)
    if finish == "length":
        return Ballot(abstained="truncated", tokens=tokens)
    return Ballot(abstained="refused" if _REFUSAL.search(answer) else "unparsable", tokens=tokens)


def _objects(text: str) -> Iterator[dict[str, Any]]:
    """Outermost JSON objects in `text`, the last first: the answer stands at the end."""
    decoder = json.JSONDecoder()
    found: list[dict[str, Any]] = []
    at = text.find("{")
    while at >= 0:
        try:
            value, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            end = at + 1
        else:
            if isinstance(value, dict):
                found.append(value)
        at = text.find("{", end)
    return iter(found[::-1])


def _judgements(items: Any) -> list[Judgement] | None:
    if not isinstance(items, list) or not items:
        return None
    found: dict[int, Judgement] = {}
    for item in items:
        if not isinstance(item, dict) or not _whole(item.get("turn")) or item.get("verdict") not in (-1, 0, 1):
            return None
        if isinstance(item["verdict"], bool) or item["turn"] in found:
            return None
        found[item["turn"]] = _judgement(item)
    return list(found.values())


def _judgement(item: dict[str, Any]) -> Judgement:
    verdict: Verdict = int(item["verdict"])  # type: ignore[assignment]
    said = {key: str(item.get(key) or "").strip()[:_MAX_TEXT] for key in ("rejected", "preserved", "hint", "ground")}
    # A hint with a secret or personal data in it is no hint; the rest is told without it, too.
    kept = {key: value if safe(value) else "" for key, value in said.items()}
    return Judgement(int(item["turn"]), verdict, kind="prm", **kept)


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "".join(str(p.get("text") or "") for p in content if isinstance(p, dict) and p.get("type") == "text")
    return content if isinstance(content, str) else ""


def _tokens(data: dict[str, Any], body: bytes) -> int:
    usage = data.get("usage")
    total = usage.get("total_tokens") if isinstance(usage, dict) else None
    return total if _whole(total) and total is not None else len(body) // 4
