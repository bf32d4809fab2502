"""What a stream handler sees and returns. No broker in here: handlers are tested with these types alone.

The order that makes a step effectively once: the loop produces `outputs` (acknowledged), then runs `finalize`
(state that says "this was done"), then lets the offsets of the record and of `completes` be committed. Ids are
deterministic and every step is idempotent, so a crash between any two of these repeats work but changes nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Protocol

Partition = tuple[str, int]  # topic, partition number
FirstOpen = Callable[["StreamRecord"], "int | None"]


@dataclass(frozen=True, slots=True)
class StreamRecord:
    """One record as it was read. `timestamp_ms` is the broker's; handlers take time from the record's own fields."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes
    timestamp_ms: int = 0

    @property
    def id(self) -> str:
        """ "<topic>-<partition>-<offset>": names the record in logs and dead letters."""
        return f"{self.topic}-{self.partition}-{self.offset}"


@dataclass(frozen=True, slots=True)
class Output:
    """One record to produce. `key` chooses the partition."""

    topic: str
    key: str | None
    value: bytes


@dataclass(frozen=True, slots=True)
class Done:
    """The record is handled: produce `outputs`, run `finalize`, and complete held records along with it.

    Where an output fits no topic, all of them are set aside instead and `refused` is called: they may come again.
    """

    outputs: tuple[Output, ...] = ()
    finalize: Callable[[], Awaitable[None]] | None = None
    completes: tuple[StreamRecord, ...] = ()
    refused: Callable[[], None] | None = None
    outcome: str = "done"  # what became of the record, as it is counted


@dataclass(frozen=True, slots=True)
class Held:
    """The record stays uncommitted until a later Done names it in `completes` (a batch that fills up)."""


@dataclass(frozen=True, slots=True)
class Position:
    """Where to read next, per partition. A trainer keeps it in its checkpoint instead of the consumer group."""

    offsets: dict[Partition, int] = field(default_factory=dict)


class Handler(Protocol):
    """One service's work. Raise RetryError, DeadLetterError or StopError (libs.errors) to say what to do instead.

    Any other exception counts as a fault of the record: it is retried a few times and then dead-lettered.
    """

    async def handle(self, record: StreamRecord) -> Done | Held:
        """Handle one record. Several run at once, up to the loop's bound."""
        ...

    async def tick(self) -> Done | Sequence[Done] | None:
        """Called about once a second between records (a batch grown too old). Return None when there is nothing.

        Fetching waits for it, so it only decides: the loop carries out what it returns, each Done by itself, so that
        one that cannot be produced takes no other along.
        """
        ...

    async def revoked(self, partitions: Collection[Partition]) -> None:
        """Forget what is held from these partitions: their next owner reads it again."""
        ...
