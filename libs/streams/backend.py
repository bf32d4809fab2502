"""What the loop needs of a broker. libs.streams.consumer with producer, and memory, hold this contract.

One contract suite (tests/integration/streams/test_contract.py) runs on both.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from libs.streams.types import Output, Partition, StreamRecord


class Listener(Protocol):
    """Told of every change of the assignment. No record is fetched between the two calls."""

    async def on_revoked(self, partitions: Collection[Partition]) -> None: ...

    async def on_assigned(self, partitions: Collection[Partition]) -> None: ...


class Consumer(Protocol):
    """A member of a consumer group."""

    async def start(self, listener: Listener) -> None:
        """Join the group; returns once the first assignment has arrived. Waits for a broker that is away."""
        ...

    async def fetch(self, max_records: int, timeout_seconds: float) -> list[StreamRecord]:
        """Up to max_records, in offset order per partition; empty after the timeout or when a rebalance begins.

        Raises RetryError when the broker is away and StopError when the client cannot go on.
        """
        ...

    async def commit(self, positions: Mapping[Partition, int]) -> bool:
        """Commit next offsets. False when the group has moved on: the next owner reads those records again."""
        ...

    def seek(self, partition: Partition, offset: int) -> None: ...

    def pause(self) -> None:
        """Stop delivering until `resume`; fetch still counts as a sign of life."""
        ...

    def resume(self) -> None: ...

    def assignment(self) -> set[Partition]: ...

    async def unread(self) -> dict[Partition, int]:
        """Records behind the fetch position, per assigned partition. Raises RetryError when the broker is away."""
        ...

    async def stop(self) -> None: ...


class Producer(Protocol):
    """Sends with acks=all."""

    async def send_all(self, outputs: Sequence[Output]) -> list[Output]:
        """Send and wait for every acknowledgement. Returns those that were not acknowledged: send them again.

        Raises DeadLetterError ("output_too_large") and StopError (the client cannot go on, e.g. authorisation).
        """
        ...

    async def stop(self) -> None: ...
