"""The capacity page's arithmetic, on round numbers that are worked out by hand."""

from __future__ import annotations

from tests.bench.load.plan import Assumed, page, plan

BASE = {
    "cpu_us_per_exchange": {"gateway": 600.0, "matcher": 1200.0, "judge": 60.0, "broker": 6.0, "redis": 3.0},
    "redis_bytes_per_session": 1024,
    "record_bytes": {"traffic.raw": 1000, "exchanges.classified": 48, "turns.matched": 1000, "turns.judged": 1096},
    "raw_to_judged_ms": {"p50": 10, "p99": 20},
    "sustained_exchanges_per_second": 100,
}


def test_each_resource_follows_from_what_was_measured_and_assumed() -> None:
    rows = {what: much for what, much, _ in plan(BASE, Assumed(exchanges_per_second=1000, session_ttl_hours=1))}
    assert rows["gateway cores"] == "1"  # 1000/s x 600 us / 0.6
    assert rows["matcher cores"] == "2"
    assert rows["judge cores (rules)"] == "1"
    assert rows["partitions of traffic.raw and turns.matched"] == "2"  # 500/s a process
    assert rows["Redis memory"] == "1 GiB"  # 600,000 sessions x 1 KiB
    assert rows["broker traffic in"] == "2 MiB/s"  # 1000 x 1048 + 500 x 2096 bytes
    assert rows["judge GPUs (prm, all votes cast)"] == "113"  # 500 x 3 x 1500 / 20,000
    assert rows["trainer GPUs"] == "15"  # 100 turns/s x 1500 / 10,000


def test_the_page_holds_every_variant_and_every_assumption() -> None:
    text = page({"variants": {"base": BASE, "big": BASE}, "cores": 2, "load_average": [1.0]}, Assumed())
    assert "| base | 100 | 10 / 20 | 600, 1200, 60, 6, 3 |" in text
    assert "| big |" in text
    assert "| judge votes | 3 |" in text
