"""Records of small made-up conversations over all topics, consistent with each other as the services write them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from libs.contracts import (
    Array,
    Capture,
    ExchangeClassified,
    Message,
    PolicyRelease,
    Record,
    Sample,
    TrafficRaw,
    TrainingBatch,
    TurnJudged,
    TurnMatched,
    Vote,
)

CAPTURE = Capture(
    prompt_token_ids=Array.ints([1, 2]),
    response_token_ids=Array.ints([3]),
    logprobs=Array.floats([-0.5]),
    topk_ids=Array.ints([3, 4], [1, 2]),
    topk_logprobs=Array.floats([-0.5, -1.0], [1, 2]),
)
PATH = "/v1/chat/completions"
TOPIC_OF: dict[type[Record], str] = {
    TrafficRaw: "traffic.raw",
    ExchangeClassified: "exchanges.classified",
    TurnMatched: "turns.matched",
    TurnJudged: "turns.judged",
    TrainingBatch: "training.batches",
    PolicyRelease: "policy.releases",
}


@dataclass
class Talk:
    """One conversation: `said[i]` is what the person says in exchange i; exchange i answers the reply of i - 1."""

    session: str
    said: list[str]
    start: float
    scenario: str = "homework"
    gap: float = 10.0
    verdicts: dict[int, int] = field(default_factory=dict)  # exchange -> verdict on its reply
    unmatched: dict[int, str] = field(default_factory=dict)  # exchange -> why it binds to nothing
    classes: dict[int, str] = field(default_factory=dict)
    captured: bool = True
    tagged: bool = True
    tenant: str = "tenant-a"

    def id(self, i: int) -> str:
        return f"{self.session}-{i}"

    def at(self, i: int) -> float:
        return self.start + i * self.gap

    def bound(self, i: int) -> bool:
        return i > 0 and i not in self.unmatched and self.classes.get(i, "main") == "main"

    def raw(self, i: int) -> TrafficRaw:
        return TrafficRaw(
            exchange_id=self.id(i),
            scenario=self.scenario,
            tenant=self.tenant,
            received_at=self.at(i),
            completed_at=self.at(i) + 1,
            path=PATH,
            headers={"x-reef-tag-session": self.session} if self.tagged else {},
            request=self.request(i),
            response=self.response(i),
            outcome="completed",
            release_id="base",
            capture=CAPTURE if self.captured else None,
        )

    def reply(self, i: int) -> str:
        return f"reply {i} of {self.session}"

    def request(self, i: int) -> dict[str, Any]:
        messages = [{"role": "user", "content": self.said[0]}]
        for earlier in range(i):
            messages.append({"role": "assistant", "content": self.reply(earlier)})
            messages.append({"role": "user", "content": self.said[earlier + 1]})
        return {"model": "m", "messages": messages}

    def response(self, i: int) -> dict[str, Any]:
        return {"choices": [{"message": {"role": "assistant", "content": self.reply(i)}}]}

    def classified(self, i: int) -> ExchangeClassified:
        reason = "first_request" if i == 0 else self.unmatched.get(i, "matched")
        kind: Any = self.classes.get(i, "main")
        return ExchangeClassified(
            exchange_id=self.id(i),
            scenario=self.scenario,
            tenant=self.tenant,
            exchange_class=kind,
            session_id=self.session,
            turn_id=self.id(i - 1) if self.bound(i) else None,
            rule="tag" if self.bound(i) else None,
            confidence=1.0 if self.bound(i) else 0.0,
            reason=reason if kind == "main" else "side_call",
            dialect="chat_completions",
            tagged=self.tagged,
            captured=self.captured,
            at=self.at(i),
            gap_seconds=self.gap - 1 if self.bound(i) or reason == "expired" else None,
        )

    def matched(self, i: int) -> TurnMatched:
        """Turn i - 1, answered by exchange i."""
        return TurnMatched(
            turn_id=self.id(i - 1),
            answered_by=self.id(i),
            scenario=self.scenario,
            tenant=self.tenant,
            session_id=self.session,
            rule="tag",
            confidence=1.0,
            path=PATH,
            reply=self.reply(i - 1),
            next_state=[Message("user", self.said[i])],
            request=self.request(i - 1),
            response=self.response(i - 1),
            release_id="base",
            received_at=self.at(i - 1),
            completed_at=self.at(i - 1) + 1,
            answered_at=self.at(i),
            earlier=[],
            capture=CAPTURE if self.captured else None,
        )

    def judged(self, i: int, verdict: int) -> TurnJudged:
        signal = verdict != 0
        v: Any = verdict
        return TurnJudged(
            feedback_id=f"f-{self.id(i)}",
            turn_id=self.id(i),
            answered_by=self.id(i + 1),
            scenario=self.scenario,
            tenant=self.tenant,
            session_id=self.session,
            verdict=v,
            reward=float(verdict),
            hints=["Write plain prose."] if verdict < 0 else [],
            rejected="lists" if verdict < 0 else "",
            preserved="",
            target="last",
            evidence="next_state",
            disposition="train" if signal else "dropped",
            reason="signal" if signal else "no_signal",
            judge="rules",
            judge_version="1",
            votes=[Vote(verdict=v), Vote(verdict=None, reason="timeout")],
            next_state=[Message("user", self.said[i + 1])],
            path=PATH,
            request=self.request(i),
            response=self.response(i),
            release_id="base",
            received_at=self.at(i),
            completed_at=self.at(i) + 1,
            answered_at=self.at(i + 1),
            judged_at=self.at(i + 1) + 0.5,
            capture=CAPTURE if self.captured else None,
        )

    def records(self) -> Iterator[Record]:
        """Up to the judge, in an order the services could have written them."""
        for i in range(len(self.said)):
            yield self.raw(i)
            yield self.classified(i)
            if self.bound(i):
                yield self.matched(i)
            if i - 1 in self.verdicts:
                yield self.judged(i - 1, self.verdicts[i - 1])


def batch(batch_id: str, judged: list[TurnJudged], at: float) -> TrainingBatch:
    return TrainingBatch(
        batch_id=batch_id,
        scenario=judged[0].scenario,
        samples=[
            Sample(
                feedback_id=j.feedback_id,
                turn_id=j.turn_id,
                session_id=j.session_id,
                reward=j.reward,
                verdict=j.verdict,
                hints=j.hints,
                path=j.path,
                request=j.request,
                response=j.response,
                release_id=j.release_id,
                capture=CAPTURE,
                received_at=j.received_at,
                judged_at=j.judged_at,
            )
            for j in judged
        ],
        created_at=at,
    )


def release(
    of: TrainingBatch,
    number: int,
    at: float,
    *,
    event: Literal["released", "held", "skipped", "failed"] = "released",
    dropped: dict[str, str] | None = None,
    reason: str = "",
) -> PolicyRelease:
    dropped = dropped or {}
    stepped = event in ("released", "held")
    release_id = f"{of.scenario}@{number:05d}-{of.batch_id[:8]}"
    return PolicyRelease(
        event=event,
        release_id=release_id,
        parent_id=None,
        serving=release_id if event == "released" else "base",
        scenario=of.scenario,
        step=number,
        number=number,
        batch_id=of.batch_id,
        trained=[s.feedback_id for s in of.samples if s.feedback_id not in dropped] if stepped else [],
        dropped=dropped,
        reason=reason,
        metrics={"loss": 0.25} if stepped else {},
        created_at=at,
    )


def trained_talk(session: str, start: float, scenario: str = "homework") -> list[Record]:
    """Three exchanges, a correction of the first reply and praise of the second, both trained in one step."""
    talk = Talk(
        session, ["Explain tides.", "No lists, please.", "Thanks, good."], start, scenario, verdicts={0: -1, 1: 1}
    )
    records = list(talk.records())
    judged = [r for r in records if isinstance(r, TurnJudged)]
    made = batch(f"b-{session}", judged, talk.at(2) + 2)
    return [*records, made, release(made, 1, talk.at(2) + 5)]
