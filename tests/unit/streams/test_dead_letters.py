"""Dead letters hold the whole record, and too many of them stop the loop."""

from __future__ import annotations

import base64

from libs.contracts import DeadLetter, decode
from libs.streams.dead_letters import DeadLetterLimit, dead_letter
from libs.streams.retry import Backoff
from libs.streams.types import StreamRecord

RECORD = StreamRecord("turns.matched", 3, 17, b"key", b"\x00not json")


def letter(**changes: object) -> DeadLetter:
    given = {"service": "judge", "reason": "contract", "error": "why", "attempts": 2, "failed_at": 12.5} | changes
    return decode(dead_letter(RECORD, **given).value, DeadLetter)  # type: ignore[arg-type]


def test_the_record_comes_back_byte_for_byte() -> None:
    found = letter()
    assert base64.b64decode(found.value) == RECORD.value
    assert found.key is not None
    assert base64.b64decode(found.key) == RECORD.key
    assert (found.dead_letter_id, found.source_topic, found.source_partition, found.source_offset) == (
        "turns.matched-3-17",
        "turns.matched",
        3,
        17,
    )
    assert (found.service, found.reason, found.attempts, found.failed_at) == ("judge", "contract", 2, 12.5)


def test_a_long_error_is_cut_and_a_value_that_does_not_fit_is_named() -> None:
    assert len(letter(error="x" * 5000).error) == 2000
    found = letter(error="x" * 5000, whole=False)
    assert found.value == ""
    assert found.error.endswith("[value of 9 bytes left out: read turns.matched-3-17]")
    assert len(found.error) == 2000


def test_a_row_of_dead_letters_stops_and_a_good_record_ends_the_row() -> None:
    limit = DeadLetterLimit(consecutive=2)
    assert limit.bad() is None
    assert limit.bad() is None
    assert "2 records in a row" in (limit.bad() or "")
    limit.good()
    assert limit.bad() is None


def test_a_large_share_stops_even_when_good_records_lie_between() -> None:
    limit = DeadLetterLimit(consecutive=100, share=0.5, window=10)
    for _ in range(3):
        assert limit.bad() is None
        assert limit.bad() is None
        limit.good()
    limit.good()
    assert "6 of the last 10" in (limit.bad() or "")


def test_the_share_forgets_what_left_the_window() -> None:
    limit = DeadLetterLimit(consecutive=100, share=0.5, window=10)
    for _ in range(10):
        assert limit.bad() is None
    for _ in range(5):
        limit.good()
    assert limit.bad() is None


def test_backoff_grows_to_its_bound_and_is_never_zero() -> None:
    backoff = Backoff(base_seconds=0.1, max_seconds=2.0)
    assert [backoff.bound(n) for n in (0, 1, 2, 10, 10_000)] == [0.1, 0.2, 0.4, 2.0, 2.0]
    assert all(0 < backoff.delay(3) <= 0.8 for _ in range(1000))
