"""The facts of the topics joined by exchange id, from which `rates` counts.

Records may come in any order and any number of times: every fact is keyed by a deterministic id, so a repeat changes
nothing. Usage: `ledger.observe(record)` for every record of every topic, then `ledger.counts(...)`.
"""

from __future__ import annotations

from collections import Counter, defaultdict

from libs.contracts import (
    ExchangeClassified,
    PolicyRelease,
    Record,
    TrafficRaw,
    TrainingBatch,
    TurnJudged,
    TurnMatched,
)
from libs.telemetry.rates import Conversation, Counts, Feedback, ScenarioState, Turn, count

BUCKET_SECONDS = 60
MAX_EARLY = 50_000  # feedback ids that a release named and no judged turn yet


class Ledger:
    """Not thread-safe; memory is one `Turn` per exchange kept (see `oldest` and `forget`)."""

    def __init__(self) -> None:
        self.turns: dict[str, Turn] = {}
        self.scenarios: dict[str, ScenarioState] = {}
        self.newest: float = 0.0  # the newest record time seen: the ledger's clock
        self._turn_of: dict[str, str] = {}  # feedback id -> exchange id
        self._early: dict[str, dict[str, object]] = {}  # feedback id -> what a release said before the turn was known
        self._events: set[tuple[str, str, str]] = set()
        self._promoted: set[str] = set()
        self._buckets: dict[tuple[str, int], set[str]] = defaultdict(set)
        self._last_at: dict[Conversation, float] = {}
        self._cache: dict[tuple[str, int], tuple[float, str, Counts]] = {}

    # --- facts in ---------------------------------------------------------------------------------------------

    def observe(self, record: Record) -> set[str]:
        """Take one record of any topic in; returns the exchange ids whose facts it touched."""
        match record:
            case TrafficRaw():
                self.newest = max(self.newest, record.completed_at)
                return self._set(
                    record.exchange_id,
                    record.scenario,
                    record.received_at,
                    tenant=record.tenant,
                    outcome=record.outcome,
                    captured=record.capture is not None,
                )
            case ExchangeClassified():
                return self._classified(record)
            case TurnMatched():
                return self._bind(
                    record.turn_id, record.answered_by, record.rule, record.scenario, record.received_at,
                    record.answered_at,
                )  # fmt: skip
            case TurnJudged():
                return self._judged(record)
            case TrainingBatch():
                return self._batched(record)
            case PolicyRelease():
                return self._released(record)
        return set()

    def _classified(self, r: ExchangeClassified) -> set[str]:
        self.newest = max(self.newest, r.at)
        known = self.turns.get(r.exchange_id)
        if known and known.answers and r.turn_id is None:
            return set()  # an earlier look, redelivered: the binding found since stands
        touched = self._set(
            r.exchange_id, r.scenario, r.at, tenant=r.tenant, exchange_class=r.exchange_class, session_id=r.session_id,
            answers=r.turn_id, reason=r.reason, rule=r.rule or "", dialect=r.dialect, tagged=r.tagged,
            hinted=r.hinted, gap_seconds=r.gap_seconds,
        )  # fmt: skip
        if r.captured:
            self.turns[r.exchange_id].captured = True
        turn = self.turns[r.exchange_id]
        if turn.is_main and turn.conversation is not None:
            before = self._last_at.get(turn.conversation, 0.0)
            if r.at > before:  # the turn that was newest so far has a successor now: its bucket is to be counted anew
                self._last_at[turn.conversation] = r.at
                self._cache.pop((r.scenario, int(before) // BUCKET_SECONDS), None)
        if r.turn_id is not None:
            touched |= self._bind(r.turn_id, r.exchange_id, r.rule or "", r.scenario, 0.0, r.at)
        return touched

    def _bind(
        self, turn_id: str, answered_by: str, rule: str, scenario: str, received_at: float, answered_at: float
    ) -> set[str]:
        self.newest = max(self.newest, answered_at)
        return self._set(
            turn_id, scenario, received_at, answered_by=answered_by, answered_rule=rule, answered_at=answered_at
        )

    def _judged(self, r: TurnJudged) -> set[str]:
        abstentions = Counter(v.reason or "unknown" for v in r.votes if v.verdict is None)
        return self._feedback(
            r.feedback_id, r.turn_id, r.scenario, r.received_at,
            judged=True, verdict=r.verdict, disposition=r.disposition, reason=r.reason, hints=len(r.hints),
            abstentions=dict(abstentions), judged_at=r.judged_at,
        )  # fmt: skip

    def _batched(self, r: TrainingBatch) -> set[str]:
        touched: set[str] = set()
        for s in r.samples:
            touched |= self._feedback(
                s.feedback_id, s.turn_id, r.scenario, s.received_at, batch_id=r.batch_id, batched_at=r.created_at
            )
        return touched

    def _released(self, r: PolicyRelease) -> set[str]:
        state = self.scenarios.setdefault(r.scenario, ScenarioState())
        of_its_own = r.event in ("released", "held")
        mark = (r.scenario, r.event, r.release_id if of_its_own else r.batch_id or f"{r.release_id} {r.created_at}")
        if mark not in self._events:  # a batch ends in one event, however often it is told, to a new log too
            self._events.add(mark)
            state.events[r.event] = state.events.get(r.event, 0) + 1
        if r.created_at > state.at:  # events of one scenario are ordered by their time; a repeat is not newer
            state.at, state.serving, state.step, state.number = r.created_at, r.serving, r.step, r.number
            state.last_event, state.last_reason = r.event, r.reason
            if r.metrics:
                state.metrics = dict(r.metrics)
        touched: set[str] = set()
        event = "promoted" if r.event == "held" and r.release_id in self._promoted else r.event
        for feedback_id in r.trained:
            touched |= self._outcome(
                feedback_id, trained_at=r.created_at, release_id=r.release_id, event=event, batch_id=r.batch_id or ""
            )
        if r.event == "promoted":
            self._promote(r.release_id)
        for feedback_id, reason in r.dropped.items():
            touched |= self._outcome(feedback_id, dropped=reason)
        return touched

    def _promote(self, release_id: str) -> None:
        """What a held release was trained on serves now."""
        self._promoted.add(release_id)
        for turn in self.turns.values():
            for feedback in turn.feedback.values():
                if feedback.release_id == release_id:
                    feedback.event = "promoted"
        for facts in self._early.values():
            if facts.get("release_id") == release_id:
                facts["event"] = "promoted"

    def _outcome(self, feedback_id: str, **facts: object) -> set[str]:
        turn_id = self._turn_of.get(feedback_id)
        if turn_id is None:
            self._early.setdefault(feedback_id, {}).update(facts)
            if len(self._early) > MAX_EARLY:
                self._early.pop(next(iter(self._early)))
            return set()
        return self._feedback(feedback_id, turn_id, "", 0.0, **facts)

    def _feedback(self, feedback_id: str, turn_id: str, scenario: str, at: float, **facts: object) -> set[str]:
        touched = self._set(turn_id, scenario, at)
        self._turn_of[feedback_id] = turn_id
        feedback = self.turns[turn_id].feedback.setdefault(feedback_id, Feedback())
        for name, value in {**self._early.pop(feedback_id, {}), **facts}.items():
            setattr(feedback, name, value)
        return touched

    def _set(self, exchange_id: str, scenario: str, at: float, **facts: object) -> set[str]:
        turn = self.turns.get(exchange_id)
        if turn is None:
            turn = self.turns[exchange_id] = Turn(exchange_id=exchange_id)
        for name, value in facts.items():
            setattr(turn, name, value)
        self._place(turn, scenario or turn.scenario, at or turn.at)
        return {exchange_id}

    def _place(self, turn: Turn, scenario: str, at: float) -> None:
        """Keep the turn in the bucket of its scenario and minute, whose cached count is void now."""
        old = (turn.scenario, int(turn.at) // BUCKET_SECONDS)
        turn.scenario, turn.at = scenario, at
        new = (scenario, int(at) // BUCKET_SECONDS)
        if new != old and old in self._buckets:
            self._buckets[old].discard(turn.exchange_id)
            self._cache.pop(old, None)
        self._buckets[new].add(turn.exchange_id)
        self._cache.pop(new, None)

    # --- keeping it bounded -----------------------------------------------------------------------------------

    def forget(self, exchange_id: str) -> None:
        """Drop a turn and all that hangs on it."""
        turn = self.turns.pop(exchange_id, None)
        if turn is None:
            return
        key = (turn.scenario, int(turn.at) // BUCKET_SECONDS)
        self._buckets[key].discard(exchange_id)
        self._cache.pop(key, None)
        if not self._buckets[key]:
            del self._buckets[key]
        for feedback_id in turn.feedback:
            self._turn_of.pop(feedback_id, None)
        if turn.conversation is not None and self._last_at.get(turn.conversation, -1.0) <= turn.at:
            self._last_at.pop(turn.conversation, None)

    def oldest(self, *, before: float | None = None, at_least: int = 0) -> list[str]:
        """Exchange ids of the minutes that ended before `before`, and then on until there are `at_least`.

        An exchange that only its answer has named so far has no time yet and does not count as old.
        """
        found: list[str] = []
        for key in sorted(self._buckets, key=lambda key: key[1]):
            old = before is not None and 0 < key[1] < int(before) // BUCKET_SECONDS
            if old or len(found) < at_least:
                found += self._buckets[key] if old else sorted(self._buckets[key])[: at_least - len(found)]
        return found

    # --- figures out ---------------------------------------------------------------------------------------------

    def turn_of(self, feedback_id: str) -> str | None:
        """The exchange that a feedback is about, None when no judged turn or batch has named it yet."""
        return self._turn_of.get(feedback_id)

    def scenario_names(self) -> list[str]:
        """Every scenario seen, in order of name."""
        return sorted({scenario for scenario, _ in self._buckets if scenario} | set(self.scenarios))

    def counts(
        self,
        scenario: str | None = None,
        *,
        ttl_seconds: float,
        window_seconds: float | None = None,
        now: float | None = None,
    ) -> Counts:
        """Figures of one scenario (or all) over the turns of the last `window_seconds` (or all that are kept).

        A window is rounded to whole minutes. `now` defaults to the newest record time seen, so that a recorded log
        gives the same figures whenever it is read.
        """
        now = self.newest if now is None else now
        oldest = None if window_seconds is None else int(now - window_seconds) // BUCKET_SECONDS
        total = Counts()
        for key in self._buckets:
            if (scenario is None or key[0] == scenario) and (oldest is None or key[1] > oldest):
                total.add(self._bucket(key, now, ttl_seconds))
        return total

    def _bucket(self, key: tuple[str, int], now: float, ttl_seconds: float) -> Counts:
        start, expired_before = key[1] * BUCKET_SECONDS, now - ttl_seconds
        age = "young" if start >= expired_before else "old" if start + BUCKET_SECONDS <= expired_before else ""
        cached = self._cache.get(key)
        if cached and cached[:2] == (ttl_seconds, age) and age:
            return cached[2]
        counts = count(
            (self.turns[i] for i in self._buckets[key]), now=now, ttl_seconds=ttl_seconds, last_at=self._last_at
        )
        self._cache[key] = (ttl_seconds, age, counts)
        return counts
