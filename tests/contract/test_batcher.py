"""The batcher reads the stored turns.judged and policy.releases, and writes the stored training.batches."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from libs.contracts import PolicyRelease, TurnJudged, decode
from libs.streams.types import Done, Held, StreamRecord
from services.batcher.config import BatcherSettings
from services.batcher.handler import BatchHandler
from services.batcher.releases import Serving
from services.batcher.seen import MemorySeen
from tests.judged import EXAMPLES


def record(path: Path, offset: int = 0) -> StreamRecord:
    return StreamRecord(path.parts[-3], 0, offset, b"homework", path.read_bytes())


def handler(batch_size: int) -> BatchHandler:
    return BatchHandler(
        BatcherSettings(batcher_batch_size=batch_size), MemorySeen(), Serving(), now=lambda: 1764000051.0
    )


async def test_two_judged_turns_make_the_stored_batch() -> None:
    batcher = handler(2)
    folder = EXAMPLES / "turns.judged" / "v1"
    assert isinstance(await batcher.handle(record(folder / "rejected-with-hint.json", 1)), Held)
    done = await batcher.handle(record(folder / "accepted.json", 2))
    assert isinstance(done, Done)
    stored = EXAMPLES / "training.batches" / "v1" / "two-turns.json"
    assert json.loads(done.outputs[0].value) == json.loads(stored.read_bytes())


@pytest.mark.parametrize("path", sorted((EXAMPLES / "turns.judged" / "v1").glob("*.json")), ids=lambda p: p.stem)
async def test_every_stored_judged_turn_is_batched_or_dropped_as_it_says(path: Path) -> None:
    given = record(path)
    result = await handler(1).handle(given)
    assert isinstance(result, Done)
    assert bool(result.outputs) is (decode(given.value, TurnJudged).disposition == "train")


@pytest.mark.parametrize("path", sorted((EXAMPLES / "policy.releases" / "v1").glob("*.json")), ids=lambda p: p.stem)
def test_every_stored_release_event_tells_what_serves(path: Path) -> None:
    serving = Serving()
    serving.apply(record(path))
    event = decode(path.read_bytes(), PolicyRelease)
    assert serving.staleness(event.scenario, event.serving) == 0
    if event.event == "released":
        assert serving.staleness(event.scenario, event.parent_id or "") == 1
