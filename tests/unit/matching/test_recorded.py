"""Recorded traffic of real agents, when it lies beside the repository: bounds of precision, recall and classes."""

from __future__ import annotations

import asyncio
import json
import random
from collections import defaultdict
from pathlib import Path

import pytest

from libs.contracts import TrafficRaw
from libs.dialects import partition_key
from libs.matching.matcher import Matcher
from libs.matching.memory import MemoryStore
from libs.matching.reading import read_record
from tests.bench.matching.perturbations import Rows, no_ids
from tests.bench.matching.suite import load, measure

CORPUS = Path(__file__).parents[4] / "shared" / "traffic"
FILES = sorted(CORPUS.glob("*.traffic.jsonl"))
pytestmark = pytest.mark.skipif(
    not FILES, reason="../shared/traffic is not there: recorded traffic is no part of this repository"
)


@pytest.fixture(scope="module")
def rows() -> Rows:
    return load(FILES)


@pytest.mark.parametrize(("lost", "precision", "recall"), [(False, 0.999, 0.99), (True, 0.995, 0.97)])
def test_bindings_and_classes(rows: Rows, lost: bool, precision: float, recall: float) -> None:
    got = measure(no_ids(rows) if lost else rows)
    assert got["precision"] >= precision, got["wrong"]
    assert got["recall"] >= recall, got["missed"]
    assert got["main_side"] >= 0.98


@pytest.mark.parametrize("lost", [False, True])
def test_any_order_of_partitions_binds_nothing_else(rows: Rows, lost: bool) -> None:
    """The whole log with its partitions in random order, far beyond what a broker does.

    Left out are threads of sub-agents, which without a header are known by their parent's call alone. A few answers
    stay unbound: twins whose equal calls are told apart by order.
    """
    side = {label["exchange_id"] for _, label in rows if label["kind"] == "side"}
    records = [read_record(json.dumps(r).encode()) for r, _ in (no_ids(rows) if lost else rows)]
    records.sort(key=lambda r: (r.completed_at, r.received_at))
    mixed, arrived = bindings(shuffled(records, seed=1)), bindings(records)
    assert {pair for pair in mixed - arrived if pair[1] not in side} == set()
    assert len(arrived - mixed) <= 0.01 * len(arrived)


def shuffled(records: list[TrafficRaw], seed: int) -> list[TrafficRaw]:
    """Partitions in order, interleaved at random."""
    draw = random.Random(seed)
    queues: dict[str, list[TrafficRaw]] = defaultdict(list)
    for record in records:
        queues[partition_key(record)].append(record)
    picks = [key for key, queue in queues.items() for _ in queue]
    draw.shuffle(picks)
    return [queues[key].pop(0) for key in picks]


def bindings(records: list[TrafficRaw]) -> set[tuple[str, str]]:
    async def run() -> set[tuple[str, str]]:
        matcher = Matcher(MemoryStore())
        outcomes = [await matcher.match(r) for r in records]
        return {(b.turn_id, b.answered_by) for o in outcomes for b in o.bindings if b.evidence == "next_state"}

    return asyncio.run(run())
