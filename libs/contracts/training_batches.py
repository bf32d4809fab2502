"""training.batches: judged turns of one scenario that make one optimizer step.

Key: scenario (so one partition orders a scenario's steps). Producer: batcher. Consumers: trainer, monitor.
"""

from __future__ import annotations

from typing import Any

import msgspec

from libs.contracts.base import Capture, Record

TOPIC = "training.batches"
VERSION = 1


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """One judged turn, self-contained: the trainer renders the teacher's prompt from `request` and `hints`."""

    feedback_id: str
    turn_id: str
    session_id: str
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
