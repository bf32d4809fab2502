"""What the monitor does with one record. No broker in here: bytes in, facts and figures out.

Its state is what the topics say: at a start they are read back from `retention` ago, so there is nothing of its own to
lose, and a record delivered again sets the same values again.
"""

from __future__ import annotations

from libs.contracts import TOPICS, DeadLetter, PolicyRelease, Record, decode
from libs.errors import ContractError
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
        self._forgotten: dict[str, float] = {}  # session id -> when its tombstone was written
        self._max_exchanges = max_exchanges
        self._live_since = live_since

    def take(self, topic: str, key: bytes | None, value: bytes | None, *, timestamp: float) -> None:
        """Take one record in. `timestamp` is the broker's, unix seconds.

        Raises ContractError when the record does not have its topic's form.
        """
        if value is None:  # a tombstone: the key's data is to be forgotten
            self.forget_session((key or b"").decode("utf-8", "replace"), at=timestamp)
            return
        try:
            record = decode(value, TOPICS[topic])
        except RecursionError as error:
            raise ContractError(f"the record is nested too deeply: {error}") from error
        if isinstance(record, DeadLetter):
            self._dead_letter(record, timestamp)
            return
        before = {i: _stages(self.ledger.turns.get(i)) for i in self._ids(record)}
        touched = self.ledger.observe(record)
        self.conversations.observe(record)
        for exchange_id in touched:
            turn = self.ledger.turns[exchange_id]
            if turn.session_id in self._forgotten and turn.at <= self._forgotten[turn.session_id]:
                self._drop(exchange_id)
            elif timestamp >= self._live_since:
                _observe_latency(before.get(exchange_id, frozenset()), turn, timestamp)

    def _ids(self, record: Record) -> list[str]:
        if isinstance(record, PolicyRelease):
            known = (self.ledger.turn_of(f) for f in record.trained)
            return [turn for turn in known if turn is not None]
        ids = [getattr(record, "turn_id", None), getattr(record, "exchange_id", None)]
        ids += [sample.turn_id for sample in getattr(record, "samples", ())]
        return [i for i in ids if i is not None]

    def _dead_letter(self, letter: DeadLetter, timestamp: float) -> None:
        if letter.dead_letter_id not in self.dead and timestamp >= self._live_since:
            metrics.MONITOR_DEAD_LETTERS.labels(letter.service, letter.source_topic, letter.reason).inc()
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

    def forget_session(self, session_id: str, *, at: float) -> int:
        """Drop every exchange of a session up to `at` (unix seconds), text included. Returns how many were held.

        Other topics may still bring records of that session: they are dropped as they come.
        """
        self._forgotten[session_id] = max(at, self._forgotten.get(session_id, 0.0))
        ids = [t.exchange_id for t in self.ledger.turns.values() if t.session_id == session_id and t.at <= at]
        for exchange_id in ids:
            self._drop(exchange_id)
        return len(ids)

    def _drop(self, exchange_id: str) -> None:
        self.ledger.forget(exchange_id)
        self.conversations.forget(exchange_id)


def _stages(turn: Turn | None) -> frozenset[str]:
    """Which stages the turn has reached, per feedback: what is in here was already observed."""
    if turn is None:
        return frozenset()
    reached = {"match"} if turn.answered_by else set()
    for feedback_id, f in turn.feedback.items():
        reached |= {f"judge:{feedback_id}"} if f.judged_at else set()
        reached |= {f"batch:{feedback_id}"} if f.batched_at else set()
        reached |= {f"train:{feedback_id}"} if f.trained_at else set()
    return frozenset(reached)


def _observe_latency(before: frozenset[str], turn: Turn, timestamp: float) -> None:
    """Seconds of each stage that this record completed; the whole way counts from the answer's arrival."""
    for reached in _stages(turn) - before:
        stage, _, feedback_id = reached.partition(":")
        f = turn.feedback.get(feedback_id)
        if stage == "match":
            _observe("match", turn.answered_at, timestamp)
        elif f and stage == "judge":
            _observe("judge", turn.answered_at, f.judged_at)
        elif f and stage == "batch":
            _observe("batch", f.judged_at, f.batched_at)
        elif f and stage == "train":
            _observe("train", f.batched_at, f.trained_at)
            _observe("raw_to_trained", turn.answered_at, f.trained_at)


def _observe(stage: str, start: float, end: float) -> None:
    if start > 0 and end > 0:  # an earlier stage's record may not have come yet
        metrics.STAGE_SECONDS.labels(stage).observe(max(0.0, end - start))
