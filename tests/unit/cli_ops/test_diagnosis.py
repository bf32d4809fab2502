"""Each cause that the doctor knows is found in the traffic that has it, and not in healthy traffic."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from libs.cli.commands.doctor import tell
from libs.cli.doctor.diagnosis import diagnose
from libs.cli.doctor.findings import System
from libs.contracts import Record, TurnJudged
from libs.telemetry.ledger import Ledger
from services.monitor.status import status
from tests.monitor_records import Talk, batch, release, trained_talk

T0 = 1_700_000_000.0
TTL = 3600.0
JUDGE_UP = {("clawback_judge_up", frozenset({("from", "judge")})): 1.0}


def system(
    records: list[Record], *, now: float = T0 + 600, lag: Any = None, letters: Any = None, **rest: Any
) -> System:
    ledger = Ledger()
    for record in records:
        ledger.observe(record)
    document = status(ledger, ttl_seconds=TTL, now=now)
    document |= {"lag": lag or {}, "dead_letters": letters or {}}
    return System(status=document, **({"metrics": JUDGE_UP} | rest))


def causes(s: System) -> dict[str, str]:
    return {f.cause: f.severity for f in diagnose(s)}


def talks(n: int, prefix: str = "s", **options: Any) -> list[Record]:
    return [r for i in range(n) for r in Talk(f"{prefix}{i}", ["a", "b", "c"], T0 + i, **options).records()]


def healthy() -> list[Record]:
    return [r for i in range(8) for r in trained_talk(f"s{i}", T0 + i)]


def test_healthy_traffic_has_no_findings() -> None:
    assert diagnose(system(healthy())) == []
    assert "nothing found" in tell(system(healthy()), [])


def test_no_traffic_at_all() -> None:
    assert causes(system([])) == {"no_traffic": "stops"}


def test_no_tags_and_no_hints() -> None:
    found = causes(system(talks(3, tagged=False, unmatched={1: "ambiguous", 2: "ambiguous"}, verdicts={})))
    assert found["no_tags_no_hints"] == "costs"
    assert found["ambiguous"] == "costs"
    well = causes(system([r for i in range(3) for r in Talk(f"s{i}", ["a", "b"], T0, tagged=False).records()]))
    assert well["no_tags_no_hints"] == "note", "the transcript alone matches: nothing to repair"


def test_side_calls_only() -> None:
    records = [r for i in range(6) for r in Talk(f"s{i}", ["title?"], T0, classes={0: "side"}).records()]
    assert causes(system(records)) == {"side_calls_only": "stops"}


def test_agent_compacts_without_tail() -> None:
    records = [
        r
        for i in range(4)
        for r in Talk(
            f"s{i}", ["a", "summarise", "b"], T0, classes={1: "compaction"}, unmatched={2: "reply_not_served"}
        ).records()
    ]
    assert causes(system(records))["compacts_without_tail"] == "costs"


def test_history_rewritten() -> None:
    records = talks(4, unmatched={1: "reply_not_served", 2: "reply_not_served"})
    assert causes(system(records))["history_rewritten"] == "costs"


def test_ttl_shorter_than_gaps() -> None:
    records = [*healthy(), *talks(3, prefix="late", unmatched={1: "expired"})]
    found = [f for f in diagnose(system(records)) if f.cause == "ttl_too_short"]
    assert found[0].figure.startswith("3 of 33 turns came after the TTL of 3600 s, at most 9 s after the reply")
    assert "CLAWBACK_MATCHER_TTL_SECONDS" in found[0].fix


def test_capture_missing_upstream() -> None:
    assert causes(system(talks(3, captured=False)))["capture_missing"] == "stops"
    half = [*talks(2, captured=False), *(r for i in range(1) for r in trained_talk("t", T0))]
    assert causes(system(half))["capture_missing"] == "costs"


def ended(outcome: Any, n: int) -> list[Record]:
    """Exchanges whose request ended so, without a successor."""
    lone = [Talk(f"{outcome}-{i}", ["a"], T0 + i) for i in range(n)]
    raw = [msgspec.structs.replace(t.raw(0), outcome=outcome, capture=None) for t in lone]
    return [*raw, *(msgspec.structs.replace(t.classified(0), captured=False) for t in lone)]


def test_requests_that_fail_are_named_as_such() -> None:
    assert causes(system(ended("upstream_error", 6))) == {"requests_fail": "stops"}
    assert causes(system([*healthy(), *ended("upstream_error", 3)])) == {"requests_fail": "costs"}
    assert causes(system([*healthy(), *ended("upstream_error", 1)])) == {}
    assert causes(system([*healthy(), *ended("client_gone", 3)])) == {"clients_give_up": "costs"}
    both = causes(system([*talks(3, captured=False), *ended("upstream_error", 3)]))
    assert (both["capture_missing"], both["requests_fail"]) == ("stops", "costs")


def test_a_broker_away_is_one_finding_with_what_waits() -> None:
    down = {s: {"kafka": "no answer within 5 s", "assigned": "no"} for s in ("matcher", "judge")}
    down |= {"trainer": {"kafka": "x", "handler": "cannot write"}, "policy": {"answers": "refused"}}
    metrics = JUDGE_UP | {("clawback_gateway_spool_records", frozenset()): 3.0}
    findings = diagnose(system(healthy(), down=down, metrics=metrics))
    assert [f.cause for f in findings] == ["broker_away", "service_down", "service_down"]
    assert findings[0].figure == (
        "matcher, judge, trainer cannot reach it: no answer within 5 s; 3 exchanges wait in the gateway's spool"
    )
    assert [f.figure for f in findings[1:]] == ["kafka: x; handler: cannot write", "answers: refused"]


def test_judge_down() -> None:
    down = {("clawback_judge_up", frozenset({("from", "judge")})): 0.0}
    found = causes(system(talks(4), metrics=down))
    assert found["judge_down"] == "stops"
    assert found["matches_without_verdicts"] == "stops"
    assert "judge_down" not in causes(system(healthy()))


def test_judge_abstains() -> None:
    talk = Talk("s", ["a", "b"], T0, verdicts={0: -1})
    judged = talk.judged(0, -1)
    votes = [*judged.votes, *judged.votes[1:]]
    records = [*talk.records(), msgspec.structs.replace(judged, votes=votes)]
    found = [f for f in diagnose(system(records)) if f.cause == "judge_abstains"]
    assert "timeout 2" in found[0].figure


def test_batches_too_large_for_the_traffic() -> None:
    records = list(Talk("s", ["a", "b", "c"], T0, verdicts={0: -1, 1: -1}).records())
    found = [f for f in diagnose(system(records, batch_size=32)) if f.cause == "batches_too_large"]
    assert found[0].figure.startswith("2 of 32 turns are there; at this rate a batch fills in 960 min")
    begun = [f for f in diagnose(system(records, batch_size=32, now=T0 + 60)) if f.cause == "batches_too_large"]
    assert "fills in 80 min" in begun[0].figure, "the hour has only begun"
    assert "batches_too_large" not in causes(system(records, batch_size=3, now=T0 + 60, batch_max_age_seconds=600.0))
    assert "batches_too_large" not in causes(system(records, batch_size=2)), "full: it is the batcher that is late"


def stepped(event: Any) -> list[Record]:
    talk = Talk("s", ["a", "b", "c"], T0, verdicts={0: -1, 1: -1})
    records: list[Record] = list(talk.records())
    made = batch("b", [r for r in records if isinstance(r, TurnJudged)], T0 + 30)
    return [*records, made, release(made, 1, T0 + 31, event=event, reason="repetition")]


def test_releases_held() -> None:
    found = [f for f in diagnose(system(stepped("held"))) if f.cause == "release_held"]
    assert found[0].figure == "1 held, 0 released; repetition"
    assert "release_held" not in causes(system(stepped("released")))


def test_no_step_succeeds() -> None:
    assert causes(system(stepped("failed")))["no_step_succeeds"] == "stops"


def test_trainer_silent() -> None:
    records: list[Record] = []
    for i in range(4):
        talk = Talk(f"s{i}", ["a", "b"], T0, verdicts={0: -1})
        records += [*talk.records(), batch(f"b{i}", [talk.judged(0, -1)], T0 + 30)]
    assert causes(system(records))["trainer_silent"] == "stops"


def test_stale_turns() -> None:
    key = ("clawback_batcher_dropped_total", frozenset({("scenario", "homework"), ("reason", "stale")}))
    assert causes(system(healthy(), metrics=JUDGE_UP | {key: 7.0}))["stale"] == "costs"


@pytest.mark.parametrize(
    ("options", "cause"),
    [
        ({"down": {"matcher": {"answers": "refused"}}}, "service_down"),
        ({"down": {"matcher": {"kafka": "away"}}}, "service_down"),  # one alone: it is not the broker
        ({"down": {s: {"kafka": "away", "assigned": "no"} for s in ("matcher", "judge", "trainer")}}, "broker_away"),
        ({"lag": {"clawback-judge": {"turns.matched": 900}}}, "lag"),
        ({"letters": {"judge/contract": 2}}, "dead_letters"),
        ({"metrics": JUDGE_UP | {("clawback_gateway_spool_records", frozenset()): 3.0}}, "spool"),
    ],
)
def test_what_ails_the_whole_system(options: Any, cause: str) -> None:
    assert list(causes(system(healthy(), **options))) == [cause]


def test_what_stops_all_signal_comes_first_and_every_finding_has_figure_and_fix() -> None:
    aside = [r for i in range(6) for r in Talk(f"x{i}", ["t"], T0, "other", classes={0: "side"}).records()]
    untagged = [r for i in range(3) for r in Talk(f"z{i}", ["a", "b"], T0, "zz", tagged=False).records()]
    findings = diagnose(system([*healthy(), *aside, *untagged], lag={"clawback-judge": {"turns.matched": 900}}))
    assert [f.severity for f in findings] == ["stops", "costs", "note"]
    assert all(f.says and f.figure and f.fix for f in findings)
    page = tell(system(aside), findings)
    assert page.index("STOPS ALL SIGNAL  other:") < page.index("costs signal") < page.index("note  zz:")
