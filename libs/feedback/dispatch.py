"""The dispatch table of the design: from feedback to turns.judged records.

| hint accepted | verdict +1/-1 | record                                             |
|---------------|---------------|----------------------------------------------------|
| yes           | yes           | reward and hint candidates                         |
| yes           | no            | reward 0, hint candidates                          |
| no            | yes           | reward, un-hinted anchor as the only candidate     |
| no            | no            | dropped, with a reason                             |
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from libs.contracts import TurnJudged, TurnMatched
from libs.feedback.attribution import Feedback
from libs.feedback.judge import Judge

# Judgements without words of a person about the reply: the person went on to something else, or asked again.
IMPLICIT_KINDS = frozenset({"moved_on", "built_on", "regeneration", "branch"})


@dataclass(frozen=True, slots=True)
class Weights:
    """Scale of a sample's loss by evidence (dimensionless). 0 drops that evidence as "implicit_only".

    A tool call that worked says little (most do), a failed one more; neither weighs as much as a person's words.
    """

    words: float = 1.0
    moved_on: float = 0.5
    tool_success: float = 0.1
    tool_failure: float = 0.5
    regeneration: float = 0.5
    branch: float = 0.25

    def of(self, evidence: str, kind: str, verdict: int) -> float:
        if evidence == "regeneration":
            return self.regeneration
        if evidence == "branch":
            return self.branch
        if kind == "machine":
            return self.tool_success if verdict > 0 else self.tool_failure
        return self.moved_on if kind in IMPLICIT_KINDS else self.words


def records(
    matched: TurnMatched,
    feedback: Sequence[Feedback],
    judge: Judge,
    *,
    judged_at: float,
    weights: Weights,
    require_capture: bool = True,
) -> list[TurnJudged]:
    """One record per feedback; the answered turn always has one. `judged_at` is unix seconds."""
    elsewhere = any(f.earlier is not None for f in feedback)
    made = []
    for f in feedback:
        captured = (f.earlier or matched).capture is not None or not require_capture
        weight = weights.of(matched.evidence, f.outcome.kind, f.outcome.verdict)
        made.append(_record(matched, f, judge, judged_at, weight, _reason(f, weight, captured, elsewhere)))
    return made


def _reason(feedback: Feedback, weight: float, captured: bool, elsewhere: bool) -> str:
    said = feedback.outcome
    if not said.verdict and not said.hints:
        if said.votes and all(v.verdict is None for v in said.votes):
            return said.votes[0].reason  # nobody was asked, which is something else than nothing found
        return "about_earlier_turn" if elsewhere and feedback.earlier is None else "no_signal"
    if weight <= 0:
        return "implicit_only"
    return "signal" if captured else "not_captured"


def _record(
    matched: TurnMatched, feedback: Feedback, judge: Judge, judged_at: float, weight: float, reason: str
) -> TurnJudged:
    said = feedback.outcome
    turn = feedback.earlier or matched
    return TurnJudged(
        feedback_id=feedback.feedback_id,
        turn_id=turn.turn_id,
        answered_by=matched.answered_by,
        scenario=matched.scenario,
        tenant=matched.tenant,
        session_id=matched.session_id,
        verdict=said.verdict,
        reward=float(said.verdict),
        hints=list(said.hints),
        rejected=said.rejected,
        preserved=said.preserved,
        target=feedback.target,
        evidence=matched.evidence,
        weight=weight,
        disposition="train" if reason == "signal" else "dropped",
        reason=reason,
        judge=judge.name,
        judge_version=judge.version,
        votes=list(said.votes),
        next_state=matched.next_state,
        path=turn.path,
        request=turn.request,
        response=turn.response,
        release_id=turn.release_id,
        received_at=turn.received_at,
        completed_at=turn.completed_at,
        answered_at=matched.answered_at,
        judged_at=judged_at,
        capture=turn.capture,
    )
