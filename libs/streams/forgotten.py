"""Whose data is not to be used: the tombstones, and what leaves out the records that they cover.

A stage that reads old records (a replay, a consumer that was down, a dead letter sent again) must not bring back a
person who was forgotten meanwhile. So every consumer follows the topic of tombstones and begins once it has read it.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Collection, Sequence

import msgspec

from libs.contracts import Tombstone, decode
from libs.contracts.tombstones import TOPIC
from libs.contracts.training_batches import Sample
from libs.errors import RetryError
from libs.streams.config import ServiceSettings
from libs.streams.follow import Follower
from libs.streams.types import Done, Handler, Held, Output, Partition, StreamRecord
from libs.telemetry.logs import get_logger

OUTCOME = "forgotten"  # in clawback_records_total, and the reason of a sample or a turn that is left out
_PERSONAL = ("traffic.raw", "exchanges.classified", "turns.matched", "turns.judged")
_PATIENCE_SECONDS = 10.0
_FETCH_MAX_WAIT_MS = 250  # a tombstone is not urgent; the local broker answers every fetch at once or after this
_log = get_logger("streams.forgotten")


class Subject(msgspec.Struct, frozen=True):
    """Whose a record is, and of when: the fields by which the personal topics say so. `tenant` "" is not known."""

    tenant: str = ""
    session_id: str | None = None
    exchange_id: str | None = None
    turn_id: str | None = None
    answered_by: str | None = None
    received_at: float = 0.0  # unix seconds
    at: float = 0.0  # the same in exchanges.classified


class Forgotten:
    """The tombstones read so far. Applying one twice changes nothing."""

    def __init__(self) -> None:
        self._tenants: dict[str, float] = {}  # -> up to when, unix seconds
        self._sessions: dict[str, dict[str, float]] = {}  # session -> tenant ("" for every one) -> up to when
        self._exchanges: dict[str, str] = {}  # exchange -> tenant

    def __bool__(self) -> bool:
        return bool(self._tenants or self._sessions)

    def apply(self, record: StreamRecord) -> None:
        """Take in one record of the topic. Raises ContractError."""
        self.add(decode(record.value, Tombstone))

    def add(self, stone: Tombstone) -> None:
        """Take in one tombstone."""
        if stone.kind == "tenant":
            self._tenants[stone.value] = max(stone.at, self._tenants.get(stone.value, 0.0))
            return
        until = self._sessions.setdefault(stone.value, {})
        until[stone.tenant] = max(stone.at, until.get(stone.tenant, 0.0))
        self._exchanges |= dict.fromkeys(stone.exchange_ids, stone.tenant)

    def covers(self, subject: Subject) -> bool:
        """Whether it is a forgotten person's, from before they were forgotten."""
        when = subject.received_at or subject.at
        if when <= self._tenants.get(subject.tenant, -1.0):
            return True
        for exchange in (subject.exchange_id or subject.turn_id, subject.answered_by):
            if exchange in self._exchanges and _same(self._exchanges[exchange], subject.tenant):
                return True
        marks = self._sessions.get(subject.session_id or "", {})
        return any(when <= until for tenant, until in marks.items() if _same(tenant, subject.tenant))

    def covers_value(self, topic: str, value: bytes) -> bool:
        """The same of an encoded record. What is not of its topic's form is left to who handles it."""
        if not self or topic not in _PERSONAL:
            return False
        try:
            return self.covers(msgspec.json.decode(value, type=Subject))
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            return False


def subject_of(sample: Sample) -> Subject:
    """Whose a sample of a training batch is."""
    return Subject(
        tenant=sample.tenant, session_id=sample.session_id, turn_id=sample.turn_id, received_at=sample.received_at
    )


def _same(one: str, other: str) -> bool:
    return one == other or not one or not other


class LeavesOut:
    """A handler that never sees what is forgotten and whose outputs hold none of it. Both are counted and logged."""

    def __init__(self, handler: Handler, settings: ServiceSettings) -> None:
        self._handler = handler
        self._suffix = settings.stream_input_suffix
        self.forgotten = Forgotten()
        # A replay may read side topics; the tombstones of the live system hold for it all the same.
        topics = list(dict.fromkeys([TOPIC, settings.input_topic(TOPIC)]))
        slow = settings.model_copy(update={"kafka_fetch_max_wait_ms": _FETCH_MAX_WAIT_MS})
        self._follower = Follower(slow, topics, self.forgotten.apply)

    async def start(self) -> None:
        """Begin to follow; `handle` waits until the tombstones that are there have been read."""
        if hasattr(self._handler, "leave_out"):
            self._handler.leave_out(self.forgotten)
        await self._follower.start(patience_seconds=0.0)

    async def stop(self) -> None:
        await self._follower.stop()

    async def handle(self, record: StreamRecord) -> Done | Held:
        """See Handler. Raises RetryError while the tombstones cannot be read."""
        await self._known()
        if self.forgotten.covers_value(record.topic.removesuffix(self._suffix), record.value):
            _log.info("left out", record=record.id, reason=OUTCOME)
            return Done(outcome=OUTCOME)
        result = await self._handler.handle(record)
        if isinstance(result, Held) or not self.forgotten:
            return result
        kept = tuple(o for o in result.outputs if not self._left_out(record, o))
        # An exchange may only turn out to be a forgotten session's when it has been matched.
        outcome = result.outcome if kept or not result.outputs else OUTCOME
        return dataclasses.replace(result, outputs=kept, outcome=outcome)

    async def tick(self) -> Done | Sequence[Done] | None:
        return await self._handler.tick()

    async def revoked(self, partitions: Collection[Partition]) -> None:
        await self._handler.revoked(partitions)

    def _left_out(self, record: StreamRecord, output: Output) -> bool:
        covered = self.forgotten.covers_value(output.topic, output.value)
        if covered:
            _log.info("left out", record=record.id, output=output.topic, reason=OUTCOME)
        return covered

    async def _known(self) -> None:
        if self._follower.caught_up.is_set():
            return
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                await self._follower.caught_up.wait()
        except TimeoutError:
            raise RetryError("the tombstones have not been read yet", reason="tombstones") from None
