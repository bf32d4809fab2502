"""One turn through every topic: each stage once, in order, with a dead letter where it ended."""

from __future__ import annotations

import base64
import random

import pytest

from libs.cli.commands.trace import stages_of
from libs.contracts import DeadLetter, TurnJudged, encode
from tests.monitor_records import Talk, batch, release, trained_talk

T0 = 1_700_000_000.0


@pytest.mark.parametrize("seed", range(5))
def test_a_trained_turn_has_every_stage_once_in_order(seed: int) -> None:
    records = [*trained_talk("s", T0), *trained_talk("s", T0), *trained_talk("other", T0)]
    random.Random(seed).shuffle(records)
    stages = stages_of("s-0", records)
    assert [s["topic"] for s in stages] == [
        "traffic.raw",
        "exchanges.classified",
        "exchanges.classified",  # the exchange that answers it
        "turns.matched",
        "turns.judged",
        "training.batches",
        "policy.releases",
    ]
    assert [round(s["at"] - T0, 1) for s in stages] == [0, 0, 10, 10, 10.5, 22, 25]
    assert "verdict -1 by rules [-1, (timeout)] -> train (signal), hint: Write plain prose." in stages[4]["what"]
    assert stages[-1]["what"] == "step 1 released: release homework@00001-b-s, loss 0.2500"


def test_an_unmatched_exchange_says_why_and_ends_there() -> None:
    stages = stages_of("s-1", list(Talk("s", ["a", "b"], T0, unmatched={1: "ambiguous"}).records()))
    assert [s["topic"] for s in stages] == ["traffic.raw", "exchanges.classified"]
    assert "answers none: ambiguous" in stages[1]["what"]


def test_a_turn_left_out_of_its_step_says_why() -> None:
    talk = Talk("s", ["a", "b"], T0, verdicts={0: -1})
    records = list(talk.records())
    made = batch("b", [r for r in records if isinstance(r, TurnJudged)], T0 + 20)
    stages = stages_of("s-0", [*records, made, release(made, 1, T0 + 21, dropped={"f-s-0": "stale"})])
    assert stages[-1]["what"].startswith("left out (stale), released")


def test_a_dead_letter_that_holds_the_turn_is_shown() -> None:
    talk = Talk("s", ["a", "b"], T0)
    letter = DeadLetter(
        dead_letter_id="turns.matched-0-7",
        service="judge",
        source_topic="turns.matched",
        source_partition=0,
        source_offset=7,
        reason="too_few_votes",
        error="one valid vote of three",
        attempts=5,
        failed_at=T0 + 30,
        key=None,
        value=base64.b64encode(encode(talk.matched(1))).decode(),
    )
    stages = stages_of("s-0", [*talk.records(), letter])
    assert stages[-1]["what"] == "judge set turns.matched-0-7 aside: too_few_votes: one valid vote of three"
    assert stages_of("t-0", [letter]) == []
