"""The state in memory: the offline form, and the reference that the Redis script is tested against."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

from libs.matching.choose import Candidate, Choice, choose, served_before, settled, waits
from libs.matching.plan import Earlier, Late, Limits, Plan, Result
from libs.matching.verdict import Verdict, classify

MAX_EXPIRED = 8  # sessions expired per exchange, so that no single one pays for a quiet night


@dataclass(slots=True)
class Entry:
    """One exchange as the state remembers it."""

    one: Candidate
    light: bytes
    heavy: bytes
    answer: bytes
    captured: bool
    result: Result | None = None


@dataclass(slots=True)
class Session:
    """The exchanges of a conversation, oldest first."""

    entries: list[str] = field(default_factory=list)
    newest: str = ""
    newest_at: float = -1.0
    history: bool = False  # its requests bring their history along
    size: int = 0  # bytes


class MemoryStore:
    """Holds one process's state; `apply` never awaits, so it is atomic."""

    def __init__(self) -> None:
        self._slots: dict[str, _Slot] = {}

    async def apply(self, plan: Plan, limits: Limits) -> Result:
        """Bind the exchange and remember it; the same plan again returns the first result."""
        return self._slots.setdefault(plan.slot, _Slot()).apply(plan, limits)


class _Slot:
    """The state of one tenant's scenario."""

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}
        self.keys: dict[str, list[str]] = {}
        self.waiting: dict[str, list[tuple[str, str]]] = {}  # key -> (exchange, level)
        self.sessions: dict[str, Session] = {}
        self.seen: dict[str, float] = {}  # when each session was last seen
        self.order: list[tuple[float, str]] = []  # a heap of the same; stale pairs are skipped

    # What the rules read (choose.View).
    def under(self, key: str) -> Sequence[Candidate]:
        return [e.one for i in self.keys.get(key, ()) if (e := self.entries.get(i))]

    def get(self, exchange_id: str) -> Candidate | None:
        entry = self.entries.get(exchange_id)
        return entry.one if entry else None

    def kept(self, exchange_id: str) -> bool:
        entry = self.entries.get(exchange_id)
        return entry is not None and entry.heavy != b""

    def newest(self, session: str) -> Candidate | None:
        found = self.sessions.get(session)
        return self.get(found.newest) if found and not found.history else None

    def apply(self, plan: Plan, limits: Limits) -> Result:
        known = self.entries.get(plan.id)
        if known and known.result:
            return known.result
        expired = self._expire(plan.now - limits.ttl_seconds)
        plan = settled(plan, limits, self)
        choice = choose(plan, limits, self)
        verdict = classify(plan, limits, self, choice, self._delegated(plan, limits))
        entry = self._remember(plan, limits, choice, verdict)
        late = self._late(plan, limits, entry) if verdict.kind == "main" else []
        evicted = self._bound(limits, entry.one.session)
        entry.result = self._result(plan, limits, choice, verdict, entry, late, (expired, evicted))
        return entry.result

    def _delegated(self, plan: Plan, limits: Limits) -> bool:
        """Is the request's opening an argument of a call that another agent's turn made a short time ago?"""
        for key in plan.spawn:
            for one in self.under(key):
                age = plan.now - one.done
                recent = -limits.slack_seconds <= age <= limits.spawn_seconds
                if one.id != plan.id and recent and one.prompt != plan.prompt:
                    return True
        return False

    def _remember(self, plan: Plan, limits: Limits, choice: Choice, verdict: Verdict) -> Entry:
        found = verdict.previous
        session = plan.session or (found.session if found else "") or self._again_session(plan, verdict)
        served = served_before(plan, choice)
        one = Candidate(
            id=plan.id,
            now=plan.now,
            done=plan.done,
            delivered=plan.delivered,
            outcome=plan.outcome,
            session=session or f"auto:{plan.id}",
            named=plan.session,
            kind=verdict.kind,
            same=plan.same,
            prompt=plan.prompt,
            calls=plan.calls,
            ids=plan.ids,
            brought=[m for m in plan.brought if m not in served],
            served=served,
            heads=plan.own_heads,
            previous=found.id if found else "",
            bound=verdict.turn.id if verdict.turn else "",
        )
        entry = self.entries[plan.id] = Entry(one, plan.light, plan.heavy, plan.answer, plan.captured)
        if verdict.turn and verdict.kind == "main":
            verdict.turn.answered.append(plan.id)
        if plan.same:
            self._put(plan.same, plan.id, limits)
        for key in [k for _, k in plan.keys] + plan.own_cut + plan.own_lines + plan.own_spawns + [plan.own_response]:
            if key and plan.delivered:
                self._put(key, plan.id, limits)
        if choice.found is None and plan.kind == "main":
            for level, key in waits(plan, choice):
                waiting = self.waiting.setdefault(key, [])
                if len(waiting) < limits.max_entries:
                    waiting.append((plan.id, level))
        self._into_session(one, plan, limits)
        return entry

    def _again_session(self, plan: Plan, verdict: Verdict) -> str:
        again = self.get(verdict.rejects) if verdict.rejects else None
        if again is None and verdict.label == "retry":
            again = next((c for c in self.under(plan.same) if c.id != plan.id and c.now <= plan.now), None)
        return again.session if again else ""

    def _put(self, key: str, exchange_id: str, limits: Limits) -> None:
        under = self.keys.setdefault(key, [])
        if exchange_id not in under:
            under.insert(0, exchange_id)
            del under[limits.max_entries :]

    def _into_session(self, one: Candidate, plan: Plan, limits: Limits) -> None:
        session = self.sessions.setdefault(one.session, Session())
        session.entries.append(one.id)
        session.size += len(plan.heavy)
        session.history = session.history or bool(plan.slots)
        if one.kind == "main" and one.delivered and one.now >= session.newest_at:
            session.newest, session.newest_at = one.id, one.now
        while len(session.entries) > limits.max_turns or session.size > limits.max_session_bytes:
            if session.entries[0] in (one.id, one.previous):  # a redelivery gives the binding again: keep its turn
                break
            self._forget(session, session.entries.pop(0))
        last = max(plan.now, plan.done)  # the time to answer begins with the reply, which may take longer than the TTL
        self.seen[one.session] = max(last, self.seen.get(one.session, last))
        heapq.heappush(self.order, (self.seen[one.session], one.session))

    def _forget(self, session: Session, exchange_id: str) -> None:
        entry = self.entries.pop(exchange_id, None)
        session.size -= len(entry.heavy) if entry else 0

    def _late(self, plan: Plan, limits: Limits, entry: Entry) -> list[Late]:
        """Answers that were read before this turn: bind them now."""
        found: list[Late] = []
        for key in [*(k for _, k in plan.keys), plan.own_response]:
            for other_id, level in self.waiting.get(key, ()):
                other = self.entries.get(other_id)
                if other is None or other.one.bound or other.one.kind != "main" or other_id == plan.id:
                    continue
                in_time = entry.one.done <= other.one.now + limits.slack_seconds and entry.one.now < other.one.now
                fresh = other.one.now - entry.one.done <= limits.ttl_seconds
                if in_time and fresh and entry.one.same != other.one.same and plan.delivered:
                    other.one.bound = other.one.previous = plan.id
                    entry.one.answered.append(other_id)
                    found.append(Late(other_id, level, other.answer))
        return found

    def _oldest(self) -> tuple[float, str] | None:
        while self.order and self.seen.get(self.order[0][1]) != self.order[0][0]:
            heapq.heappop(self.order)
        return self.order[0] if self.order else None

    def _expire(self, before: float) -> int:
        gone = 0
        while gone < MAX_EXPIRED and (oldest := self._oldest()) and oldest[0] < before:
            self._drop_session(oldest[1], keep=True)
            gone += 1
        return gone

    def _bound(self, limits: Limits, own: str) -> int:
        evicted = 0
        while len(self.seen) > limits.max_sessions and (oldest := self._oldest()) and oldest[1] != own:
            self._drop_session(oldest[1], keep=False)
            evicted += 1
        return evicted

    def _drop_session(self, name: str, *, keep: bool) -> None:
        """Forget a session; an expired one leaves tombstones, so that a late answer is told from an unknown one."""
        self.seen.pop(name, None)
        session = self.sessions.pop(name, None)
        for exchange_id in session.entries if session else ():
            entry = self.entries.get(exchange_id)
            if entry and keep:
                entry.heavy = b""
            elif entry:
                del self.entries[exchange_id]

    def _earlier(self, start: str, limits: Limits) -> list[Earlier]:
        found: list[Earlier] = []
        left = limits.earlier_bytes
        at = start
        while at and len(found) < limits.earlier_turns:
            entry = self.entries.get(at)
            if entry is None:
                break
            heavy = entry.heavy if entry.captured and len(entry.heavy) <= left else b""
            left -= len(heavy)
            found.append(Earlier(at, entry.light, heavy))
            at = entry.one.previous
        return found[::-1]

    def _result(
        self,
        plan: Plan,
        limits: Limits,
        choice: Choice,
        verdict: Verdict,
        entry: Entry,
        late: list[Late],
        counts: tuple[int, int],
    ) -> Result:
        turn = self.entries.get(verdict.turn.id) if verdict.turn else None
        rejected = self.entries.get(verdict.rejects) if verdict.rejects else None
        own = entry if late else None
        before = turn or rejected or own
        return Result(
            turn=verdict.turn.id if verdict.turn else "",
            turn_session=verdict.turn.named if verdict.turn else "",
            level=choice.level if verdict.previous else "",
            at=choice.at,
            narrowed=choice.narrowed,
            reason=verdict.reason,
            kind=verdict.label,
            session=entry.one.session,
            gap=round(plan.now - verdict.previous.done, 6) if verdict.previous else -1.0,
            repeats=verdict.repeats,
            rejects=verdict.rejects,
            expired=counts[0],
            evicted=counts[1],
            light=turn.light if turn else b"",
            heavy=turn.heavy if turn else b"",
            earlier=self._earlier(before.one.previous, limits) if before else [],
            late=late,
            rejected_light=rejected.light if rejected else b"",
            rejected_heavy=rejected.heavy if rejected else b"",
        )
