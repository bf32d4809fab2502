"""Read every topic during the experiment: raw records to JSONL files, facts to the ledger, waiters woken by records.

The figures come from `libs.telemetry.ledger`, like those of `clawback status`, so that the two agree.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from aiokafka import AIOKafkaConsumer
from aiokafka.structs import TopicPartition

from libs.contracts import (
    TOPICS,
    ExchangeClassified,
    PolicyRelease,
    Record,
    TrainingBatch,
    TurnJudged,
    TurnMatched,
    decode,
)
from libs.contracts.release_chain import Chain, fold
from libs.errors import ContractError
from libs.telemetry.ledger import Ledger
from libs.telemetry.rates import Counts

MAX_STALENESS = 4  # the batcher's and the trainer's, set by the runs' stack


class Facts:
    """What the topics say about one scenario. No I/O; any record may come twice."""

    def __init__(self, scenario: str) -> None:
        self.scenario = scenario
        self.ledger = Ledger()
        self.classified: dict[str, ExchangeClassified] = {}
        self.matched: set[tuple[str, str]] = set()  # (turn, answered_by)
        self.judged_pairs: set[tuple[str, str]] = set()
        self.to_train: dict[str, str] = {}  # feedback with disposition "train", and the release that served its turn
        self.batches: dict[str, list[str]] = {}
        self.events: dict[str, PolicyRelease] = {}  # by batch id
        self.chain = Chain(scenario=scenario)
        self.unreadable = 0

    def add(self, topic: str, value: bytes) -> None:
        """Take in one record. One that does not decode is counted and left out."""
        kind = TOPICS.get(topic)
        if kind is None:
            return
        try:
            record: Record = decode(value, kind)
        except ContractError:
            self.unreadable += 1
            return
        if getattr(record, "scenario", None) != self.scenario:
            return
        self.ledger.observe(record)
        self._note(record)

    def _note(self, record: Record) -> None:
        match record:
            case ExchangeClassified():
                self.classified[record.exchange_id] = record
            case TurnMatched():
                self.matched.add((record.turn_id, record.answered_by))
            case TurnJudged():
                self.judged_pairs.add((record.turn_id, record.answered_by))
                if record.disposition == "train":
                    self.to_train[record.feedback_id] = record.release_id
            case TrainingBatch():
                self.batches[record.batch_id] = [sample.feedback_id for sample in record.samples]
            case PolicyRelease():
                self.chain = fold(self.chain, record)
                if record.batch_id:
                    self.events[record.batch_id] = record

    @property
    def unjudged(self) -> int:
        """Matched turns whose judgement is still to come (an answer may judge an earlier turn instead)."""
        answered = {by for _, by in self.judged_pairs}
        return sum(by not in answered for _, by in self.matched)

    @property
    def open_batches(self) -> int:
        """Batches that no release event names yet."""
        return sum(batch_id not in self.events for batch_id in self.batches)

    @property
    def serving(self) -> str:
        """The release that serves now."""
        return self.chain.serving

    @property
    def waiting(self) -> int:
        """Feedback to train on that is in no batch yet and may still come into one."""
        return len(self._unbatched()) - self.stale

    @property
    def stale(self) -> int:
        """Feedback to train on that came into no batch before its release was too old."""
        ages = [self.chain.staleness(release) for release in self._unbatched().values()]
        return sum(age is not None and age > MAX_STALENESS for age in ages)

    def _unbatched(self) -> dict[str, str]:
        batched = {i for ids in self.batches.values() for i in ids}
        return {i: release for i, release in self.to_train.items() if i not in batched}

    @property
    def steps(self) -> list[PolicyRelease]:
        """Events of optimizer steps (released or held), in order."""
        done = [event for event in self.events.values() if event.event in ("released", "held")]
        return sorted(done, key=lambda event: event.created_at)

    @property
    def trained(self) -> int:
        """Distinct feedback that reached an optimizer step."""
        return len({i for event in self.events.values() for i in event.trained})

    @property
    def reasons(self) -> dict[str, int]:
        """Main exchanges by what became of them: "matched" or the reason why nothing was bound."""
        return dict(Counter(c.reason for c in self.classified.values()))

    @property
    def classes(self) -> dict[str, int]:
        return dict(Counter(c.exchange_class for c in self.classified.values()))

    def counts(self, ttl_seconds: float) -> Counts:
        """Match rate and signal rate with their parts, as `clawback status` counts them."""
        return self.ledger.counts(self.scenario, ttl_seconds=ttl_seconds)


class Watch:
    """Follows all topics from their beginning, without a consumer group. Use as `async with Watch(...) as watch`."""

    def __init__(self, bootstrap: str, scenario: str, raw_dir: Path) -> None:
        self.facts = Facts(scenario)
        self._bootstrap, self._raw_dir = bootstrap, raw_dir
        self._changed = asyncio.Condition()
        self._files: dict[str, IO[bytes]] = {}
        self._task: asyncio.Task[None] | None = None
        self._consumer: AIOKafkaConsumer | None = None

    async def __aenter__(self) -> Self:
        self._raw_dir.mkdir(parents=True, exist_ok=True)
        self._files = {topic: (self._raw_dir / f"{topic}.jsonl").open("ab") for topic in TOPICS}
        consumer = AIOKafkaConsumer(
            bootstrap_servers=self._bootstrap,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            fetch_max_wait_ms=100,
            max_partition_fetch_bytes=16 * 2**20,
        )
        self._consumer = consumer
        await consumer.start()
        await consumer._client.set_topics(list(TOPICS))
        partitions = [
            TopicPartition(topic, p) for topic in TOPICS for p in sorted(consumer.partitions_for_topic(topic) or ())
        ]
        consumer.assign(partitions)
        await consumer.seek_to_beginning(*partitions)
        self._task = asyncio.create_task(self._follow(consumer))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        if self._consumer is not None:
            await self._consumer.stop()
        for file in self._files.values():
            file.close()

    async def _follow(self, consumer: Any) -> None:
        while True:
            found = await consumer.getmany(timeout_ms=500, max_records=500)
            async with self._changed:
                for partition, records in found.items():
                    file = self._files[partition.topic]
                    for record in records:
                        file.write(record.value + b"\n")
                        self.facts.add(partition.topic, record.value)
                    file.flush()
                self._changed.notify_all()

    async def until(self, ready: Callable[[Facts], bool], timeout_seconds: float) -> bool:
        """Wait until `ready` holds for the facts; False when it did not within the time. Woken by records, no sleeps.

        Raises what stopped the reading, if it stopped.
        """

        async def wait() -> None:
            async with self._changed:
                while not ready(self.facts):
                    if self._task is not None and self._task.done():
                        self._task.result()
                    await self._changed.wait()

        try:
            await asyncio.wait_for(wait(), timeout_seconds)
        except TimeoutError:
            return False
        return True
