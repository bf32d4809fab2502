"""The judge reads every stored turns.matched record and writes turns.judged records of the stored form."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from libs.contracts import TurnJudged, TurnMatched, decode
from libs.feedback.engine import Options
from libs.feedback.judges.rules import RulesJudge
from libs.streams.types import StreamRecord
from services.judge.handler import JudgeHandler

EXAMPLES = Path(__file__).parents[2] / "libs" / "contracts" / "examples"
MATCHED = {path.stem: path.read_bytes() for path in sorted((EXAMPLES / "turns.matched" / "v1").glob("*.json"))}
FIELDS = set(json.loads(next((EXAMPLES / "turns.judged" / "v1").glob("*.json")).read_text(encoding="utf-8")))


@pytest.mark.parametrize("name", MATCHED)
async def test_a_stored_matched_turn_becomes_judged_turns(name: str) -> None:
    turn = decode(MATCHED[name], TurnMatched)
    record = StreamRecord("turns.matched", 0, 0, turn.session_id.encode(), MATCHED[name])
    done = await JudgeHandler(RulesJudge(), Options(), now=lambda: turn.answered_at + 1).handle(record)
    made = [decode(output.value, TurnJudged) for output in done.outputs]
    assert made[0].turn_id == turn.turn_id
    assert len({j.feedback_id for j in made}) == len(made)
    for output, judged in zip(done.outputs, made, strict=True):
        assert (output.topic, output.key) == ("turns.judged", turn.scenario)
        assert set(json.loads(output.value)) == FIELDS
        assert judged.turn_id in {turn.turn_id, *(t.turn_id for t in turn.earlier)}
        assert (judged.answered_by, judged.tenant, judged.next_state) == (
            turn.answered_by,
            turn.tenant,
            turn.next_state,
        )
        assert judged.votes
        assert judged.reason


@pytest.mark.parametrize(
    ("name", "verdict", "target"),
    [("correction", -1, "last"), ("regeneration", -1, "last"), ("about-an-earlier-turn", -1, "earlier")],
)
async def test_what_the_stored_turns_say(name: str, verdict: int, target: str) -> None:
    done = await JudgeHandler(RulesJudge(), Options()).handle(StreamRecord("turns.matched", 0, 0, None, MATCHED[name]))
    made = [decode(output.value, TurnJudged) for output in done.outputs]
    assert (verdict, target) in {(j.verdict, j.target) for j in made}, [(j.verdict, j.target, j.reason) for j in made]
