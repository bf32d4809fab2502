"""What the monitor does with one record. No broker in here: bytes in, facts and figures out.

Its state is what the topics say: at a start they are read back from `retention` ago, so there is nothing of its own to
lose, and a record delivered again sets the same values again.
"""

from __future__ import annotations

from libs.contracts import TOPICS, DeadLetter, PolicyRelease, Record, Tombstone, TurnMatched, decode
from libs.telemetry import metrics
from libs.telemetry.ledger import Ledger
from libs.telemetry.rates import Turn
from services.monitor.conversations import Conversations

MAX_DEAD_LETTERS = 1_000  # shown; older ones stay on their topic


class Recorder:
    """Joins the topics in a `Ledger` and keeps the texts for the Inspector.

    Latencies and counters are observed only for records newer than `live_since` (unix seconds): what is read back at a
    start was observed before.
    """

    def __init__(self, conversations: Conversations, *, max_exchanges: int, live_since: float) -> None:
        self.ledger = Ledger()
        self.conversations = conversations
        self.dead: dict[str, DeadLetter] = {}
        self._held: dict[str, DeadLetter] = {}
        self._forgotten: dict[tuple[str, str], float] = {}  # (session or "", tenant or "") -> up to when
        self._max_exchanges = max_exchanges
        self._live_since = live_since

    def take(self, topic: str, value: bytes | None, *, timestamp: float) -> None:
        """Take one record in. `timestamp` is the broker's, unix seconds.

        Raises ContractError when the record does not have its topic's form.
        """
        record = decode(value or b"", TOPICS[topic])
        if isinstance(record, DeadLetter):
            self._dead_letter(record, timestamp)
            return
        if isinstance(record, Tombstone):
            self._forget(record)
            return
        before = {i: _durations(self.ledger.turns.get(i)) for i in self._ids(record)}
        touched = self.ledger.observe(record)
        self.conversations.observe(record)
        if isinstance(record, TurnMatched):
            turn = self.ledger.turns[record.turn_id]
            turn.matched_at = turn.matched_at or timestamp
        for exchange_id in touched:
            turn = self.ledger.turns[exchange_id]
            if self._is_forgotten(turn):
                self._drop(exchange_id)
            elif timestamp >= self._live_since:
                known = before.get(exchange_id, {})
                for (stage, which), seconds in _durations(turn).items():
                    if (stage, which) not in known:
                        metrics.STAGE_SECONDS.labels(turn.scenario, stage).observe(seconds)

    def _ids(self, record: Record) -> list[str]:
        if isinstance(record, PolicyRelease):
            known = (self.ledger.turn_of(f) for f in record.trained)
            return [turn for turn in known if turn is not None]
        ids: list[str | None] = [getattr(record, "turn_id", None), getattr(record, "exchange_id", None)]
        ids += [sample.turn_id for sample in getattr(record, "samples", ())]
        return [i for i in ids if i is not None]

    def _dead_letter(self, letter: DeadLetter, timestamp: float) -> None:
        if letter.dead_letter_id not in self.dead and timestamp >= self._live_since:
            metrics.MONITOR_DEAD_LETTERS.labels(letter.service, letter.source_topic, letter.reason).inc()
        known = self.dead.get(letter.dead_letter_id)
        if known is None or letter.service != "monitor":  # who should have handled it says more than who only looked
            self.dead[letter.dead_letter_id] = letter
        while len(self.dead) > MAX_DEAD_LETTERS:
            self.dead.pop(next(iter(self.dead)))

    def hold_letter(self, letter: DeadLetter) -> None:
        """Keep a letter until it is known whether an earlier run has sent it."""
        self._held[letter.dead_letter_id] = letter

    def letters_due(self) -> list[DeadLetter]:
        """Held letters that are not on the topic; they are held no longer."""
        due = [letter for letter_id, letter in self._held.items() if letter_id not in self.dead]
        self._held.clear()
        return due

    # --- keeping it bounded ---------------------------------------------------------------------------------------

    def expire(self, *, before: float) -> int:
        """Let go of exchanges received before `before` (unix seconds) and of the oldest above the bound."""
        aged = self.ledger.oldest(before=before)
        excess = len(self.ledger.turns) - self._max_exchanges
        old = self.ledger.oldest(before=before, at_least=excess)
        metrics.MONITOR_EVICTED.inc(len(old) - len(aged))
        for exchange_id in old:
            self._drop(exchange_id)
        return len(old)

    def _forget(self, tombstone: Tombstone) -> None:
        """Drop a session's or tenant's exchanges with their text, and what other topics bring of them later."""
        session, tenant = (tombstone.value, tombstone.tenant) if tombstone.kind == "session" else ("", tombstone.value)
        self._forgotten[session, tenant] = max(tombstone.at, self._forgotten.get((session, tenant), 0.0))
        for turn in [turn for turn in self.ledger.turns.values() if self._is_forgotten(turn)]:
            self._drop(turn.exchange_id)

    def _is_forgotten(self, turn: Turn) -> bool:
        session, tenant = turn.session_id or "", turn.tenant
        marks = {("", tenant), (session, tenant), (session, "")} - {("", "")}
        until = max((self._forgotten.get(mark, 0.0) for mark in marks), default=0.0)
        return 0.0 < turn.at <= until

    def _drop(self, exchange_id: str) -> None:
        self.ledger.forget(exchange_id)
        self.conversations.forget(exchange_id)


def _durations(turn: Turn | None) -> dict[tuple[str, str], float]:
    """Seconds of each stage whose two ends are known, by (stage, feedback id).

    The whole way, raw_to_trained, counts from the arrival of the answer: before it there is nothing to learn from.
    """
    if turn is None:
        return {}
    spans = {("match", ""): (turn.answered_at, turn.matched_at)}
    for feedback_id, f in turn.feedback.items():
        spans["judge", feedback_id] = (turn.answered_at, f.judged_at)
        spans["batch", feedback_id] = (f.judged_at, f.batched_at)
        spans["train", feedback_id] = (f.batched_at, f.trained_at)
        spans["raw_to_trained", feedback_id] = (turn.answered_at, f.trained_at)
    return {key: max(0.0, end - start) for key, (start, end) in spans.items() if start > 0 and end > 0}
