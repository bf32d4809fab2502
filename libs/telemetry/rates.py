"""Match rate and signal rate, defined once: pure counting over topic records, no clock and no I/O.

Everything that shows one of these figures (monitor, `clawback status`, the demo's summary, a count over the topics)
feeds records to a `libs.telemetry.ledger.Ledger` and asks it for `Counts`, so that they agree exactly.

main turn    an exchange of class main, regeneration or branch: its reply went to a person or an agent
matched      a main turn that some next state was bound to (a turns.matched record, or a classified successor)
answerable   a main turn that is matched, or had a successor (a later main turn of its session), or expired (no answer
             within the session TTL)
trained      a main turn of which at least one feedback reached an optimizer step (named by a release event's `trained`)
match rate   matched / answerable;  signal rate = trained / main turns;  null when the denominator is 0

Times are unix seconds of the records themselves.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

import msgspec

MAIN_CLASSES = frozenset({"main", "regeneration", "branch"})
OPENING_REASONS = frozenset({"first_request"})  # a conversation's first request answers nothing: not a failure


Conversation = tuple[str, str, str]  # scenario, tenant, session id


class Feedback(msgspec.Struct, kw_only=True):
    """One judgement of a turn and how far it came. Times are unix seconds, 0 where not reached."""

    judged: bool = False
    verdict: int = 0
    disposition: str = ""
    reason: str = ""
    hints: int = 0
    abstentions: dict[str, int] = msgspec.field(default_factory=dict)
    judged_at: float = 0.0
    batched_at: float = 0.0
    batch_id: str = ""
    trained_at: float = 0.0
    release_id: str = ""
    event: str = ""
    dropped: str = ""  # why the trainer left it out; what the batcher leaves out is in its metrics alone


class Turn(msgspec.Struct, kw_only=True):
    """All that the topics say about one exchange."""

    exchange_id: str
    scenario: str = ""
    tenant: str = ""
    at: float = 0.0
    exchange_class: str = ""  # "" until it is classified
    session_id: str | None = None
    answers: str | None = None
    reason: str = ""
    rule: str = ""  # of the binding in which this exchange is the answer
    dialect: str = ""
    tagged: bool = False
    hinted: bool = False
    captured: bool = False
    gap_seconds: float | None = None
    outcome: str = ""
    answered_by: str | None = None
    answered_rule: str = ""
    answered_at: float = 0.0
    matched_at: float = 0.0  # when the match was written, the broker's time; set by who reads the topic
    feedback: dict[str, Feedback] = msgspec.field(default_factory=dict)

    @property
    def conversation(self) -> Conversation | None:
        """Session ids are unique within a tenant's scenario only."""
        return None if self.session_id is None else (self.scenario, self.tenant, self.session_id)

    @property
    def is_main(self) -> bool:
        return self.exchange_class in MAIN_CLASSES

    @property
    def trained(self) -> bool:
        return any(f.trained_at for f in self.feedback.values())

    @property
    def held(self) -> bool:
        """It reached steps, but the gate kept every release back that they made."""
        return self.trained and all(f.event == "held" for f in self.feedback.values() if f.trained_at)


class ScenarioState(msgspec.Struct, kw_only=True):
    """What the release chain of one scenario says."""

    serving: str = "base"
    step: int = 0
    number: int = 0
    at: float = -1.0
    events: dict[str, int] = msgspec.field(default_factory=dict)
    last_event: str = ""
    last_reason: str = ""
    metrics: dict[str, float] = msgspec.field(default_factory=dict)


class Counts(msgspec.Struct, kw_only=True):
    """Figures over a set of turns; `turns` are main turns, each counted once."""

    exchanges: int = 0
    unclassified: int = 0
    turns: int = 0
    answerable: int = 0
    matched: int = 0
    judged: int = 0
    signal: int = 0  # judged with disposition "train"
    batched: int = 0
    trained: int = 0
    waiting: int = 0  # neither answered nor expired yet
    expired: int = 0  # no answer within the TTL
    tagged: int = 0
    hinted: int = 0
    captured: int = 0
    classes: dict[str, int] = msgspec.field(default_factory=dict)
    dialects: dict[str, int] = msgspec.field(default_factory=dict)
    rules: dict[str, int] = msgspec.field(default_factory=dict)
    unmatched: dict[str, int] = msgspec.field(default_factory=dict)  # main exchanges that bound to nothing, by reason
    outcomes: dict[str, int] = msgspec.field(default_factory=dict)
    verdicts: dict[str, int] = msgspec.field(default_factory=dict)
    no_signal: dict[str, int] = msgspec.field(default_factory=dict)  # judged but dropped, by reason
    abstentions: dict[str, int] = msgspec.field(default_factory=dict)
    drops: dict[str, int] = msgspec.field(default_factory=dict)
    hints: int = 0

    @property
    def match_rate(self) -> float | None:
        return self.matched / self.answerable if self.answerable else None

    @property
    def signal_rate(self) -> float | None:
        return self.trained / self.turns if self.turns else None

    def add(self, other: Counts) -> None:
        """Add `other` to this, field by field."""
        for name in self.__struct_fields__:
            mine, theirs = getattr(self, name), getattr(other, name)
            if isinstance(mine, int):
                setattr(self, name, mine + theirs)
            else:
                for label, n in theirs.items():
                    mine[label] = mine.get(label, 0) + n


def count(turns: Iterable[Turn], *, now: float, ttl_seconds: float, last_at: dict[Conversation, float]) -> Counts:
    """Count `turns`. `last_at`: the time of each conversation's newest main turn, so that a successor is recognised."""
    c = Counts()
    tallies: dict[str, Counter[str]] = defaultdict(Counter)
    for turn in turns:
        c.exchanges += 1
        tallies["outcomes"][turn.outcome] += 1
        if not turn.exchange_class:
            c.unclassified += 1
            continue
        tallies["classes"][turn.exchange_class] += 1
        tallies["dialects"][turn.dialect] += 1
        if turn.is_main:
            _count_main(c, tallies, turn, now - ttl_seconds, last_at)
    for name, tally in tallies.items():
        setattr(c, name, {label: n for label, n in tally.items() if label})
    return c


def _count_main(
    c: Counts, tallies: dict[str, Counter[str]], turn: Turn, expired_before: float, last_at: dict[Conversation, float]
) -> None:
    matched = turn.answered_by is not None
    succeeded = turn.conversation is not None and last_at.get(turn.conversation, turn.at) > turn.at
    expired = not matched and not succeeded and turn.at < expired_before
    c.turns += 1
    c.matched += matched
    c.answerable += matched or succeeded or expired
    c.expired += expired
    c.waiting += not (matched or succeeded or expired)
    c.tagged += turn.tagged
    c.hinted += turn.hinted
    c.captured += turn.captured
    tallies["rules"][turn.answered_rule] += matched
    if turn.answers is None and turn.reason not in OPENING_REASONS:
        tallies["unmatched"][turn.reason] += 1
    c.judged += any(f.judged for f in turn.feedback.values())
    c.signal += any(f.disposition == "train" for f in turn.feedback.values())
    c.batched += any(f.batch_id for f in turn.feedback.values())
    c.trained += turn.trained
    for f in turn.feedback.values():
        if f.judged:
            tallies["verdicts"][f"{f.verdict:+d}" if f.verdict else "0"] += 1
            if f.disposition == "dropped":
                tallies["no_signal"][f.reason] += 1
        tallies["abstentions"].update(f.abstentions)
        tallies["drops"][f.dropped] += bool(f.dropped)
        c.hints += f.hints
