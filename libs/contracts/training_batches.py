"""training.batches: judged turns of one scenario that make one optimizer step.

Key: scenario (so one partition orders a scenario's steps). Producer: batcher. Consumers: trainer, monitor.
"""

from __future__ import annotations

from typing import Any

import msgspec

from libs.contracts.base import Capture, Record
from libs.contracts.turns_judged import TurnJudged

TOPIC = "training.batches"
VERSION = 1


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """One judged turn, self-contained: the trainer renders the teacher's prompt from `request` and `hints`."""

    feedback_id: str
    turn_id: str
    session_id: str
    tenant: str = ""  # "" where an older producer did not say
    reward: float
    verdict: int
    hints: list[str]
    weight: float = 1.0
    path: str
    request: Any
    response: Any
    release_id: str
    capture: Capture
    received_at: float
    judged_at: float


class TrainingBatch(Record, frozen=True, kw_only=True):
    version: int = VERSION
    batch_id: str  # deterministic: hash of the feedback ids in order
    scenario: str
    samples: list[Sample]
    created_at: float


def sample_of(turn: TurnJudged) -> Sample:
    """What the trainer needs of a judged turn. `turn.capture` is there."""
    assert turn.capture is not None
    return Sample(
        feedback_id=turn.feedback_id,
        turn_id=turn.turn_id,
        session_id=turn.session_id,
        tenant=turn.tenant,
        reward=turn.reward,
        verdict=turn.verdict,
        hints=turn.hints,
        weight=turn.weight,
        path=turn.path,
        request=turn.request,
        response=turn.response,
        release_id=turn.release_id,
        capture=turn.capture,
        received_at=turn.received_at,
        judged_at=turn.judged_at,
    )
