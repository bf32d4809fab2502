"""Which judged turns make a batch, and when it closes. Pure: time and the serving release are passed in.

Turns of a scenario are kept in arrival order, and a batch is a prefix of them, so that the same records delivered again
make the same batches.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Literal

from libs.contracts.training_batches import Sample
from libs.streams.types import Partition, StreamRecord

Cause = Literal["size", "bytes", "age", "pressure"]


@dataclass(frozen=True, slots=True)
class Waiting:
    """One judged turn that waits for its batch. `since` is seconds on the caller's clock."""

    record: StreamRecord
    sample: Sample
    since: float

    @property
    def size(self) -> int:
        return len(self.record.value)


@dataclass(frozen=True, slots=True)
class Closed:
    """Turns that make a batch now, oldest first."""

    scenario: str
    turns: tuple[Waiting, ...]
    cause: Cause


@dataclass(slots=True)
class _Group:
    turns: list[Waiting] = field(default_factory=list)
    size: int = 0


class Groups:
    """The waiting turns of every scenario. Scenarios are kept by the age of their oldest turn."""

    def __init__(self, batch_size: int, max_bytes: int, max_age_seconds: float) -> None:
        self._batch_size = batch_size
        self._max_bytes = max_bytes
        self._max_age_seconds = max_age_seconds
        self._groups: OrderedDict[str, _Group] = OrderedDict()
        self.held = 0

    def holds(self, scenario: str, feedback_id: str) -> StreamRecord | None:
        """The record that brought this feedback and still waits."""
        group = self._groups.get(scenario)
        for waiting in group.turns if group else ():
            if waiting.sample.feedback_id == feedback_id:
                return waiting.record
        return None

    def waiting(self, scenario: str) -> int:
        group = self._groups.get(scenario)
        return len(group.turns) if group else 0

    def add(self, scenario: str, turn: Waiting) -> list[Closed]:
        """Take a turn in. Returns the batches that this closes: one that it would have burst, one that it fills."""
        closed = []
        group = self._groups.get(scenario)
        if group is not None and group.size + turn.size > self._max_bytes:
            closed.append(self._close(scenario, len(group.turns), "bytes"))
        group = self._groups.setdefault(scenario, _Group())
        group.turns.append(turn)
        group.size += turn.size
        self.held += 1
        if len(group.turns) >= self._batch_size:
            closed.append(self._close(scenario, self._batch_size, "size"))
        elif group.size >= self._max_bytes:
            closed.append(self._close(scenario, len(group.turns), "bytes"))
        return closed

    def due(self, now: float, max_held: int) -> Iterator[Closed]:
        """Close what has waited too long, and the oldest groups while more than max_held turns wait in all."""
        for scenario, group in list(self._groups.items()):
            if now - group.turns[0].since >= self._max_age_seconds:
                yield self._close(scenario, len(group.turns), "age")
            elif self.held > max_held:
                yield self._close(scenario, len(group.turns), "pressure")

    def prune(self, stale: Callable[[str, Waiting], bool]) -> list[tuple[str, Waiting]]:
        """Take out the turns that have become stale."""
        taken = [(s, turn) for s, group in self._groups.items() for turn in group.turns if stale(s, turn)]
        gone = {turn.record for _, turn in taken}
        if gone:
            self._keep(lambda turn: turn.record not in gone)
        return taken

    def forget(self, partitions: Collection[Partition]) -> None:
        """Let go of what came from these partitions."""
        self._keep(lambda turn: (turn.record.topic, turn.record.partition) not in partitions)

    def _close(self, scenario: str, count: int, cause: Cause) -> Closed:
        group = self._groups[scenario]
        taken, left = group.turns[:count], group.turns[count:]
        self._set(scenario, left)
        if left:
            self._groups.move_to_end(scenario)
        return Closed(scenario, tuple(taken), cause)

    def _keep(self, wanted: Callable[[Waiting], bool]) -> None:
        for scenario in list(self._groups):
            self._set(scenario, [turn for turn in self._groups[scenario].turns if wanted(turn)])

    def _set(self, scenario: str, turns: list[Waiting]) -> None:
        group = self._groups[scenario]
        self.held += len(turns) - len(group.turns)
        group.turns, group.size = turns, sum(turn.size for turn in turns)
        if not turns:
            del self._groups[scenario]
