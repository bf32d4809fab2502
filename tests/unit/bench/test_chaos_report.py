"""The page shows every count of the report, none of its own."""

from __future__ import annotations

from tests.bench.chaos.report import ENDS, page

FOUND = {
    "kills": 3, "kills_by_service": {"judge": 2, "trainer": 1}, "accepted": 9, "seed": 5, "wall_seconds": 61.4,
    **{name: 100 + n for n, name in enumerate(ENDS)}, "ends": {"trained:": 4, "unmatched:reply_not_served": 77},
    "faults": {"pause_broker": 2}, "poison_must_be_dead_letters": 6, "dead_letters": 8,
    "ready_afterwards": {"redis": True, "policy": False},
}  # fmt: skip


def test_every_count_is_shown() -> None:
    text = page(FOUND)
    for n, about in enumerate(ENDS.values()):
        assert f"| {about} | {100 + n} |" in text
    for line in ("| accepted exchanges | 9 |", "| unmatched: reply not served | 77 |", "| pause broker | 2 |"):
        assert line in text
    assert "judge 2, trainer 1" in text
    assert "Ready again afterwards: redis." in text
