"""What a tap shows of each topic, and what a filter keeps."""

from __future__ import annotations

from pathlib import Path

import pytest

from libs.contracts import TOPICS
from libs.errors import ConfigError
from libs.streams.tap import Filter, decoded, kind_of, sessions_of, turns_of
from libs.streams.types import StreamRecord
from tests.judged import EXAMPLES


def example(topic: str, name: str) -> StreamRecord:
    return StreamRecord(topic, 0, 0, None, (EXAMPLES / topic / "v1" / f"{name}.json").read_bytes())


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*/v1/*.json")), ids=lambda p: f"{p.parts[-3]}/{p.stem}")
def test_every_stored_record_is_decoded(path: Path) -> None:
    tapped = decoded(StreamRecord(path.parts[-3], 0, 0, None, path.read_bytes()))
    assert tapped.error is None
    assert isinstance(tapped.record, TOPICS[path.parts[-3]])


def test_a_record_of_another_form_is_shown_with_its_error() -> None:
    tapped = decoded(StreamRecord("turns.judged", 0, 7, None, b'{"version": 1}'))
    assert tapped.record is None
    assert "feedback_id" in (tapped.error or "")
    assert Filter().keeps(tapped.record)
    assert not Filter(scenario="homework").keeps(tapped.record)


def test_a_replays_topic_has_the_originals_form_and_others_are_refused() -> None:
    assert kind_of("turns.matched.replay-1") is TOPICS["turns.matched"]
    for wrong in ("turns", "turns.matchedX", "nothing"):
        with pytest.raises(ConfigError, match=wrong):
            kind_of(wrong)


def test_a_turn_is_found_in_every_topic_that_carries_it() -> None:
    turn = "0193-00000001"
    where = {
        ("traffic.raw", "chat-completions"),
        ("turns.matched", "correction"),
        ("turns.judged", "rejected-with-hint"),
        ("training.batches", "two-turns"),
        ("exchanges.classified", "matched"),
    }
    for topic, name in where:
        assert Filter(turn=turn).keeps(decoded(example(topic, name)).record), (topic, name)
        assert not Filter(turn="another").keeps(decoded(example(topic, name)).record), (topic, name)


def test_sessions_and_scenarios_are_found() -> None:
    batch = decoded(example("training.batches", "two-turns")).record
    assert batch is not None
    assert sessions_of(batch) == {"s-5f1d2a"}
    assert turns_of(batch) == {"0193-00000001", "0193-00000002"}
    assert Filter(session="s-5f1d2a", scenario="homework").keeps(batch)
    assert not Filter(session="s-5f1d2a", scenario="coding").keeps(batch)
    assert not Filter(session="s-other").keeps(batch)
