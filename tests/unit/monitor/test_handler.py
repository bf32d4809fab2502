"""One record in: bad ones are refused, repeats count once, what is read back is not observed again."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest
from prometheus_client import REGISTRY

from libs.contracts import DeadLetter, PolicyRelease, Record, Tombstone, TurnJudged, encode
from libs.errors import ContractError
from services.monitor.conversations import Conversations, newest_text, reply_text
from services.monitor.handler import Recorder
from services.monitor.inspector import conversations, reasons, state_of
from services.monitor.status import refresh_gauges, status
from tests.monitor_records import TOPIC_OF, Talk, batch, release, trained_talk

T0 = 1_700_000_000.0
TTL = 3600.0


def recorder(max_exchanges: int = 1000, live_since: float = 0.0, max_bytes: int = 1 << 20) -> Recorder:
    return Recorder(Conversations(max_bytes), max_exchanges=max_exchanges, live_since=live_since)


def feed(r: Recorder, records: list[Record], at: float = T0) -> None:
    for record in records:
        r.take(TOPIC_OF[type(record)], encode(record), timestamp=at)


def sample(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, labels) or 0.0


@pytest.mark.parametrize("value", [None, b"", b"{", b"[]", b'{"version":1}', b"\xff\xfe", b"[" * 100_000])
@pytest.mark.parametrize("topic", ["traffic.raw", "turns.judged", "policy.releases", "dead.letters"])
def test_a_bad_record_is_a_contract_error(topic: str, value: bytes | None) -> None:
    with pytest.raises(ContractError):
        recorder().take(topic, value, timestamp=T0)


@pytest.mark.parametrize("seed", range(5))
def test_latencies_are_observed_once_per_feedback(seed: int) -> None:
    before = {
        s: sample("clawback_stage_seconds_count", scenario="homework", stage=s)
        for s in ("match", "judge", "train", "raw_to_trained")
    }
    r = recorder()
    records = [*trained_talk("s", T0), *trained_talk("s", T0)]
    random.Random(seed).shuffle(records)  # topics are read in any order against each other
    feed(r, records)
    after = {s: sample("clawback_stage_seconds_count", scenario="homework", stage=s) - n for s, n in before.items()}
    assert after == {"match": 2, "judge": 2, "train": 2, "raw_to_trained": 2}


def test_what_is_read_back_at_a_start_is_not_observed_again() -> None:
    before = sample("clawback_stage_seconds_count", scenario="homework", stage="raw_to_trained")
    r = recorder(live_since=T0 + 1)
    feed(r, trained_talk("s", T0), at=T0)
    assert sample("clawback_stage_seconds_count", scenario="homework", stage="raw_to_trained") == before
    assert r.ledger.counts(ttl_seconds=TTL).trained == 2


def test_raw_to_trained_counts_from_the_answers_arrival() -> None:
    before = sample("clawback_stage_seconds_sum", scenario="homework", stage="raw_to_trained")
    feed(recorder(), trained_talk("s", T0))
    # answers at +10 and +20, the step at +25
    assert sample("clawback_stage_seconds_sum", scenario="homework", stage="raw_to_trained") - before == pytest.approx(
        15 + 5
    )


def letter(number: int) -> DeadLetter:
    return DeadLetter(
        dead_letter_id=f"traffic.raw-0-{number}",
        service="matcher",
        source_topic="traffic.raw",
        source_partition=0,
        source_offset=number,
        reason="contract",
        error="e",
        attempts=1,
        failed_at=T0,
        key=None,
        value="",
    )


def test_a_dead_letter_counts_once() -> None:
    labels = {"service": "matcher", "topic": "traffic.raw", "reason": "contract"}
    before = sample("clawback_dead_letters_seen_total", **labels)
    r = recorder()
    for number in (1, 2, 1):
        r.take("dead.letters", encode(letter(number)), timestamp=T0)
    assert sample("clawback_dead_letters_seen_total", **labels) - before == 2


def test_the_service_that_should_have_handled_it_is_named_not_the_monitor() -> None:
    r = recorder()
    for service in ("monitor", "matcher", "monitor"):
        r.take("dead.letters", encode(msgspec.structs.replace(letter(1), service=service)), timestamp=T0)
    assert [x.service for x in r.dead.values()] == ["matcher"]


def test_a_letter_that_an_earlier_run_wrote_is_not_due_again() -> None:
    r = recorder()
    r.hold_letter(letter(1))
    r.hold_letter(letter(2))
    r.take("dead.letters", encode(letter(1)), timestamp=T0)
    assert [x.dead_letter_id for x in r.letters_due()] == ["traffic.raw-0-2"]
    assert r.letters_due() == []


def test_old_exchanges_and_those_above_the_bound_are_let_go() -> None:
    r = recorder(max_exchanges=4)
    feed(r, [*trained_talk("a", T0), *trained_talk("b", T0 + 600), *trained_talk("c", T0 + 1200)])
    assert r.expire(before=T0 + 300) == 5  # three by age, two above the bound
    assert set(r.ledger.turns) >= {"c-0", "c-1", "c-2"}
    assert len(r.ledger.turns) == 4


@pytest.mark.parametrize(
    ("kind", "value", "tenant"),
    [("session", "gone", "tenant-b"), ("session", "gone", ""), ("tenant", "tenant-b", "")],
)
def test_a_tombstone_forgets_and_what_other_topics_bring_later_is_dropped(kind: Any, value: str, tenant: str) -> None:
    r = recorder()
    talk = Talk("gone", ["my secret", "b"], T0, tenant="tenant-b")
    feed(r, [*trained_talk("kept", T0), *talk.records()])
    r.take("tombstones", encode(Tombstone(kind=kind, value=value, tenant=tenant, at=T0 + 60)), timestamp=T0 + 60)
    assert {t.session_id for t in r.ledger.turns.values()} == {"kept"}
    assert r.conversations.get("gone-0").prompt == ""
    feed(r, [talk.raw(0), talk.classified(0)])
    assert "gone-0" not in r.ledger.turns
    later = Talk("gone", ["back again"], T0 + 120, tenant="tenant-b")
    feed(r, [later.raw(0), later.classified(0)])
    assert "gone-0" in r.ledger.turns, "a session that goes on after it was forgotten counts again"


def test_a_tombstone_of_one_tenants_session_leaves_the_others_alone() -> None:
    r = recorder()
    feed(r, list(Talk("same", ["a"], T0, tenant="ann").records()))
    r.take("tombstones", encode(Tombstone(kind="session", value="same", tenant="bob", at=T0 + 60)), timestamp=T0)
    assert list(r.ledger.turns) == ["same-0"]


def test_states_say_how_far_a_turn_came() -> None:
    said = ["a", "title", "b", "c", "d", "e"]
    talk = Talk("s", said, T0, verdicts={2: 0, 3: -1}, classes={1: "side"}, unmatched={5: "ambiguous"})
    r = recorder()
    feed(r, [*talk.records(), *trained_talk("t", T0)])
    states = {i: state_of(t, expired_before=T0 - 1) for i, t in r.ledger.turns.items()}
    assert states["t-0"] == ("trained", "trained")
    assert states["s-1"] == ("side", "side")
    assert states["s-2"] == ("judged", "no_signal")
    assert states["s-3"] == ("signal", "awaits_a_step")
    assert states["s-5"] == ("unmatched", "ambiguous")
    assert states["s-4"] == ("waiting", "no_answer_yet")
    assert state_of(r.ledger.turns["s-4"], expired_before=T0 + 1e6) == ("expired", "no_answer_within_ttl")


def test_a_turn_whose_release_was_held_back_is_no_trained_one_until_it_is_promoted() -> None:
    talk = Talk("s", ["a", "b", "c"], T0, verdicts={0: -1, 1: -1})
    judged = [record for record in talk.records() if isinstance(record, TurnJudged)]
    first, second = batch("b-1", judged[:1], T0 + 40), batch("b-2", judged[1:], T0 + 41)
    held, released = release(first, 1, T0 + 50, event="held", reason="gate_endless"), release(second, 2, T0 + 51)
    promoted = msgspec.structs.replace(
        held, event="promoted", batch_id=None, trained=[], serving=held.release_id, created_at=T0 + 60
    )

    def states(r: Recorder) -> dict[str, str]:
        return {i: state_of(t, expired_before=0.0)[0] for i, t in r.ledger.turns.items()}

    r = recorder()
    feed(r, [*talk.records(), first, second, held, released])
    assert states(r) == {"s-0": "held", "s-1": "trained", "s-2": "waiting"}
    assert r.ledger.counts(ttl_seconds=TTL).trained == 2, "a step was made with both"
    feed(r, [promoted, held])
    assert states(r)["s-0"] == "trained"
    early = recorder()
    feed(early, [held, promoted, *talk.records(), first])
    assert states(early)["s-0"] == "trained", "whichever topic is read first"


def test_a_chain_told_again_to_a_new_log_is_not_counted_again() -> None:
    r = recorder()
    records = trained_talk("s", T0)
    feed(r, records)
    made = next(x for x in records if isinstance(x, PolicyRelease))
    feed(r, [msgspec.structs.replace(made, batch_id=None, trained=[], reason="announced again: the log is new")])
    assert r.ledger.scenarios["homework"].events == {"released": 1}


def test_conversations_are_filtered_and_newest_first() -> None:
    r = recorder()
    feed(r, [*trained_talk("s", T0), *Talk("t", ["a", "b"], T0 + 99, "essays", unmatched={1: "ambiguous"}).records()])

    def found(**options: object) -> list[str]:
        given: dict = {"scenario": None, "reason": None, "session": None, "limit": 9, "expired_before": T0} | options
        return [c["session_id"] for c in conversations(r.ledger, r.conversations, **given)]

    assert found() == ["t", "s"]
    assert found(limit=1) == ["t"]
    assert found(scenario="homework") == ["s"]
    assert found(reason="ambiguous") == ["t"]
    assert found(reason="trained") == ["s"]
    assert found(session="s") == ["s"]
    assert "ambiguous" in reasons(r.ledger)


def test_texts_stay_within_their_bytes() -> None:
    r = recorder(max_bytes=3000)
    for i in range(50):
        feed(r, [Talk(f"s{i}", ["x" * 500], T0 + i).raw(0)])
    assert r.conversations.get("s0-0").prompt == ""
    assert r.conversations.get("s49-0").prompt == "x" * 500


@pytest.mark.parametrize(
    ("request_", "want"),
    [
        ({"messages": [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]}, "b"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "b"}, {"type": "image"}]}]}, "b"),
        ({"input": "b"}, "b"),
        ({"input": [{"type": "message", "content": [{"type": "input_text", "text": "b"}]}]}, "b"),
        ({"messages": 7}, ""),
        (None, ""),
        ({"messages": [{"content": {"text": {"text": ["b"]}}}]}, "b"),
    ],
)
def test_newest_text_of_any_dialect(request_: object, want: str) -> None:
    assert newest_text(request_) == want


@pytest.mark.parametrize(
    ("response", "want"),
    [
        ({"choices": [{"message": {"content": "a"}}]}, "a"),
        ({"choices": [{"message": {"content": None, "tool_calls": [{"function": {"name": "ls"}}]}}]}, "ls(...)"),
        ({"content": [{"type": "text", "text": "a"}, {"type": "tool_use", "name": "ls"}]}, "a\nls(...)"),
        ({"output": [{"type": "message", "content": [{"type": "output_text", "text": "a"}]}]}, "a"),
        ({"choices": []}, ""),
        ("nonsense", ""),
    ],
)
def test_reply_text_of_any_dialect(response: object, want: str) -> None:
    assert reply_text(response) == want


def test_status_and_gauges_agree() -> None:
    r = recorder()
    feed(r, trained_talk("s", T0))
    document = status(r.ledger, ttl_seconds=TTL, now=T0 + 60)
    refresh_gauges(r.ledger, ttl_seconds=TTL, now=T0 + 60)
    assert document["total"]["5m"]["match_rate"] == 1.0
    figures = document["scenarios"]["homework"]["windows"]["5m"]
    assert sample("clawback_match_rate_ratio", scenario="homework", window="5m") == figures["match_rate"]
    assert sample("clawback_signal_rate_ratio", scenario="homework", window="5m") == figures["signal_rate"]
    assert sample("clawback_window_turns", scenario="homework", window="5m", stage="trained") == 2
    assert sample("clawback_optimizer_steps", scenario="homework") == 1
    assert document["gap_seconds"] == {"count": 2, "p50": 9.0, "p99": 9.0, "max": 9.0, "late_max": None}


def test_gauges_of_what_is_gone_disappear() -> None:
    r = recorder()
    feed(r, Talk("s", ["a", "b"], T0, unmatched={1: "ambiguous"}).records())  # type: ignore[arg-type]
    refresh_gauges(r.ledger, ttl_seconds=TTL, now=T0 + 60)
    labels = {"scenario": "homework", "window": "5m", "reason": "ambiguous"}
    assert sample("clawback_window_unmatched_exchanges", **labels) == 1
    refresh_gauges(r.ledger, ttl_seconds=TTL, now=T0 + 9000)
    assert REGISTRY.get_sample_value("clawback_window_unmatched_exchanges", labels) is None


def test_held_and_released_are_counted_once_per_batch() -> None:
    r = recorder()
    talk = Talk("s", ["a", "b"], T0, verdicts={0: -1})
    made = batch("b1", [talk.judged(0, -1)], T0 + 20)
    event = release(made, 1, T0 + 21, event="held", reason="repetition")
    feed(r, [*talk.records(), made, event, event])
    assert r.ledger.scenarios["homework"].events == {"held": 1}
    assert r.ledger.scenarios["homework"].last_reason == "repetition"
