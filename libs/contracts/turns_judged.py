"""turns.judged: a turn with what its next state says about it. One record per feedback, so a turn may have several.

A record with disposition "dropped" tells that the judge looked and found no signal (design table, last row): it is
kept on the topic so that a trace and the counts can show it, and the batcher counts and skips it.
Key: scenario. Producer: judge. Consumers: batcher, monitor.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from libs.contracts.base import Capture, Message, Record

TOPIC = "turns.judged"
VERSION = 1

Verdict = Literal[-1, 0, 1]


class Vote(msgspec.Struct, frozen=True, kw_only=True):
    """One vote. An abstention has verdict null and a reason; it is never a neutral vote."""

    verdict: Verdict | None
    reason: str = ""  # abstention: timeout, http_503, unparsable, refused, ...; otherwise the judge's short ground


class TurnJudged(Record, frozen=True, kw_only=True):
    version: int = VERSION
    feedback_id: str  # deterministic: (turn_id, answered_by, target); a redelivery gives the same id
    turn_id: str  # the turn that the words are about
    answered_by: str
    scenario: str
    tenant: str
    session_id: str
    verdict: Verdict
    reward: float  # the verdict, or 0 with hints only (design table)
    hints: list[str]  # accepted hints; empty with disposition "train" means the un-hinted anchor is the candidate
    rejected: str
    preserved: str
    target: Literal["last", "earlier"]
    evidence: Literal["next_state", "regeneration", "branch"]
    weight: float = 1.0  # scales the sample's loss; implicit evidence weighs less
    disposition: Literal["train", "dropped"]
    reason: str  # why dropped ("no_signal", "not_captured", "implicit_only", ...), or "signal"
    judge: str  # rules | prm
    judge_version: str  # of prompts or of the language files
    votes: list[Vote]
    next_state: list[Message]
    path: str
    request: Any
    response: Any
    release_id: str  # the release that served the turn
    received_at: float
    completed_at: float
    answered_at: float
    judged_at: float
    capture: Capture | None = None
