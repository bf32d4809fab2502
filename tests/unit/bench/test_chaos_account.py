"""The chaos suite's account notices what it is there to notice: each kind of loss is planted once."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from libs.streams.types import StreamRecord
from tests.bench.chaos.account import Account, account, facts_of
from tests.bench.chaos.load import Accepted

ACCEPTED = [
    Accepted("e1", "s", "a list", None, None),
    Accepted("e2", "s", "prose", "e1", "a list"),
]
TOPICS: dict[str, list[dict[str, Any]]] = {
    "traffic.raw": [{"exchange_id": "e1"}, {"exchange_id": "e2"}],
    "exchanges.classified": [
        {"exchange_id": "e1", "turn_id": None, "reason": "first_request"},
        {"exchange_id": "e2", "turn_id": "e1", "reason": "matched"},
    ],
    "turns.matched": [{"turn_id": "e1", "answered_by": "e2", "reply": "a list"}],
    "turns.judged": [
        {"turn_id": "e1", "answered_by": "e2", "feedback_id": "f1", "disposition": "train", "reason": "signal"}
    ],
    "training.batches": [{"batch_id": "b1", "samples": [{"feedback_id": "f1"}]}],
    "policy.releases": [{"event": "released", "release_id": "r1", "batch_id": "b1", "trained": ["f1"], "dropped": {}}],
    "dead.letters": [],
}


def counted(change: Callable[[dict[str, Any]], None], log: str = "", tmp_path: Path | None = None) -> Account:
    topics: dict[str, Any] = json.loads(json.dumps(TOPICS))
    change(topics)
    records = [
        StreamRecord(topic, 0, n, None, json.dumps(value).encode())
        for topic, values in topics.items()
        for n, value in enumerate(values)
    ]
    logs = []
    if tmp_path is not None:
        logs = [tmp_path / "service.log"]
        logs[0].write_text(log + "\n")
    return account(ACCEPTED, facts_of([*records, StreamRecord("turns.judged", 0, 99, None, b"poison")], logs))


def nothing(_topics: dict[str, Any]) -> None:
    return None


def test_a_turn_that_went_all_the_way_is_trained_once() -> None:
    found = counted(nothing)
    assert (found.accepted, found.matched, found.trained_once, found.unanswered, found.lost) == (2, 1, 1, 1, 0)
    assert (found.trained_twice, found.misbound) == (0, 0)


@pytest.mark.parametrize(
    ("topic", "where"),
    [
        ("traffic.raw", "not_recorded"),
        ("exchanges.classified", "not_classified"),
        ("turns.judged", "not_judged"),
        ("training.batches", "not_batched"),
        ("policy.releases", "batch_without_end"),
    ],
)
def test_a_record_that_is_missing_on_a_topic_is_a_loss(topic: str, where: str) -> None:
    def cut_off(topics: dict[str, Any]) -> None:
        for name in list(topics)[list(topics).index(topic) :]:  # and so nothing came of it further on
            topics[name].clear()

    found = counted(cut_off)
    assert "e1" in found.lost_where[where]
    assert found.trained_once == 0


def test_a_step_that_used_a_feedback_again_is_noticed() -> None:
    def again(topics: dict[str, Any]) -> None:
        topics["policy.releases"].append(topics["policy.releases"][0] | {"release_id": "r2"})

    assert counted(again).trained_twice == 1
    repeated = counted(lambda topics: topics["policy.releases"].append(topics["policy.releases"][0]))
    assert repeated.trained_twice == 0, "the same event told twice is one step"


def test_a_reply_that_is_not_the_one_answered_is_noticed() -> None:
    assert counted(lambda topics: topics["turns.matched"][0].update(reply="another")).misbound == 1


def test_ends_with_a_reason_are_no_losses(tmp_path: Path) -> None:
    def unmatched(topics: dict[str, Any]) -> None:
        topics["turns.matched"].clear()
        topics["exchanges.classified"][1] |= {"turn_id": None, "reason": "ambiguous"}

    found = counted(unmatched)
    assert (found.lost, found.unmatched_counted, found.reasons["unmatched:ambiguous"]) == (0, 1, 1)

    letter = {
        "dead_letter_id": "turns.matched-0-0",
        "reason": "contract",
        "value": base64.b64encode(json.dumps(TOPICS["turns.matched"][0]).encode()).decode(),
    }

    def dead(topics: dict[str, Any]) -> None:
        topics["turns.judged"].clear()
        topics["dead.letters"].append(letter)

    found = counted(dead)
    assert (found.lost, found.dead_lettered) == (0, 1)

    def stale(topics: dict[str, Any]) -> None:
        topics["training.batches"].clear()
        topics["policy.releases"].clear()

    line = json.dumps({"event": "dropped", "feedback": "f1", "reason": "stale"})
    found = counted(stale, line, tmp_path)
    assert (found.lost, found.reasons["dropped:stale"]) == (0, 1)
    assert counted(stale).lost == 1

    line = json.dumps({"event": "record_dropped", "exchange_id": "e1", "reason": "spool_full"})
    found = counted(lambda topics: topics["traffic.raw"].pop(0), line, tmp_path)
    assert (found.lost, found.reasons["dropped:gateway_spool_full"]) == (0, 1)
