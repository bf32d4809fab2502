"""What the trainer promises about order, positions and its one step at a time, with a learner that only counts."""

from __future__ import annotations

import asyncio
import errno
import threading
from pathlib import Path

import msgspec
import pytest

from libs.contracts import BASE_RELEASE, Adapter, PolicyRelease, TrainingBatch, claims, decode, encode
from libs.contracts.policy_releases import release_id_for
from libs.contracts.release_chain import folded, rollback
from libs.errors import RetryError
from libs.streams import work
from libs.streams.memory import MemoryBroker
from libs.streams.retry import Backoff
from libs.streams.service import loop_of
from libs.streams.types import Done, Output, StreamRecord
from libs.streams.work import LoopOptions
from services.trainer import store as store_module
from services.trainer.handler import TrainerHandler
from services.trainer.learner import LearnerOptions
from services.trainer.store import Store
from tests.eventually import eventually
from tests.tiny_model import batch, sample

BATCHES = "training.batches"
WEIGHTS = Adapter(kind="lora", uri="/none", digest="0")


class Counting:
    """Every batch makes a release at once, or when `go` is set. Two at the same time are noted."""

    def __init__(self, store: Store) -> None:
        self.store, self.options = store, LearnerOptions()
        self.go = threading.Event()
        self.go.set()
        self.running, self.together, self.begun = 0, False, 0
        self.now = 1.0

    def process(self, b: TrainingBatch, position: dict[str, int]) -> PolicyRelease:
        self.begun += 1
        self.running += 1
        self.together |= self.running > 1
        assert self.go.wait(20)
        self.running -= 1
        self.now += 1.0
        chain = self.store.get(b.scenario).chain
        release_id = release_id_for(b.scenario, chain.number + 1, b.batch_id)
        return PolicyRelease(
            event="released",
            release_id=release_id,
            parent_id=chain.serving,
            serving=release_id,
            scenario=b.scenario,
            step=chain.step + 1,
            number=chain.number + 1,
            batch_id=b.batch_id,
            trained=[s.feedback_id for s in b.samples],
            dropped={},
            weights=WEIGHTS,
            metrics={},
            created_at=self.now,
        )

    def forget(self) -> None:
        return None


def make(home: Path) -> tuple[TrainerHandler, Counting]:
    store = Store(home, "base")
    learner = Counting(store)
    return TrainerHandler(learner, store), learner  # type: ignore[arg-type]


def record(b: TrainingBatch, offset: int) -> StreamRecord:
    return StreamRecord(BATCHES, 0, offset, b.scenario.encode(), encode(b))


def one(name: str, scenario: str = "anna") -> TrainingBatch:
    return batch(name * 8, sample(f"f-{name}"), scenario=scenario)


def events(done: Done) -> list[PolicyRelease]:
    return [decode(o.value, PolicyRelease) for o in done.outputs if o.topic == "policy.releases"]


async def test_the_position_never_passes_a_batch_that_is_still_being_fetched_from_the_claim_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker, url = MemoryBroker(partitions=1), (tmp_path / "store").as_uri()
    large, small = one("a", "ben"), one("b")
    broker.append(Output(BATCHES, "ben", claims.store(encode(large), url, BATCHES)))
    broker.append(Output(BATCHES, "anna", encode(small)))

    def away(_ticket: bytes, _url: str) -> bytes:
        raise RetryError("the store is away", reason="claim_read")

    handler, _ = make(tmp_path)
    options = LoopOptions(claims_url=url, backoff=Backoff(0.001, 0.01), commit_interval_seconds=0.02)
    with monkeypatch.context() as patched:
        patched.setattr(work.claims, "redeem", away)
        loop = loop_of("trainer", handler, handler, broker.consumer([BATCHES], "g"), broker.producer(), options)
        running = asyncio.create_task(loop.run())
        await eventually(lambda: broker.records("policy.releases"))
        await eventually(lambda: handler._store.get("anna").pending is None)
        loop.stop()
        await running
    restarted, _ = make(tmp_path)
    loop = loop_of("trainer", restarted, restarted, broker.consumer([BATCHES], "g"), broker.producer(), options)
    running = asyncio.create_task(loop.run())
    try:
        await eventually(lambda: len(broker.records("policy.releases")) == 2, within_seconds=5)
    finally:
        loop.stop()
        await running
    log = [decode(r.value, PolicyRelease) for r in broker.records("policy.releases")]
    assert [e.batch_id for e in log] == [small.batch_id, large.batch_id]


async def test_a_batch_waits_until_the_event_of_the_one_before_is_out(tmp_path: Path) -> None:
    handler, learner = make(tmp_path)
    first = await handler.handle(record(one("a"), 0))
    second = asyncio.create_task(handler.handle(record(one("b"), 1)))
    await asyncio.sleep(0.05)
    assert learner.begun == 1, "the second event could overtake the first one, and a crash would lose the first"
    assert first.finalize is not None
    await first.finalize()
    (event,) = events(await asyncio.wait_for(second, 5))
    assert event.parent_id == events(first)[0].release_id


async def test_an_event_that_cannot_go_out_keeps_no_turn_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.trainer.handler._PATIENCE_SECONDS", 0.05)
    handler, _ = make(tmp_path)
    (first,) = events(await handler.handle(record(one("a"), 0)))
    with pytest.raises(RetryError, match="not out yet"):
        await handler.handle(record(one("b"), 1))
    assert events(await handler.handle(record(one("c", "ben"), 2)))
    told = await handler.tick()  # its own record may have been set aside: then this is how it goes out
    assert told is not None and await published(told) == [first]
    assert events(await handler.handle(record(one("b"), 1)))


async def test_a_restart_publishes_every_event_that_was_decided(tmp_path: Path) -> None:
    handler, _ = make(tmp_path)
    (event,) = events(await handler.handle(record(one("a"), 0)))  # killed before it was published
    restarted, _ = make(tmp_path)
    announced = await restarted.tick()
    assert announced is not None and events(announced) == [event]
    again = await restarted.tick()
    assert again is not None and events(again) == [event], "a tick that could not produce is no publication"
    assert announced.finalize is not None
    await announced.finalize()
    assert await restarted.tick() is None
    assert restarted._store.get("anna").pending is None
    assert events(await restarted.handle(record(one("b"), 1)))


async def test_a_step_that_was_left_ends_before_the_next_one_begins(tmp_path: Path) -> None:
    handler, learner = make(tmp_path)
    learner.go.clear()
    left = asyncio.create_task(handler.handle(record(one("a"), 0)))
    await eventually(lambda: learner.begun == 1)
    left.cancel()
    await asyncio.gather(left, return_exceptions=True)
    again = asyncio.create_task(handler.handle(record(one("a"), 0)))
    await asyncio.sleep(0.1)
    learner.go.set()
    (event,) = events(await asyncio.wait_for(again, 10))
    assert (event.batch_id, learner.together) == ("a" * 8, False)


def full(_path: Path, _data: bytes) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


async def test_a_disk_that_is_full_when_the_state_is_written_is_waited_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handler, _ = make(tmp_path)
    with monkeypatch.context() as patched, pytest.raises(RetryError, match="No space"):
        patched.setattr(store_module, "write_file_atomically", full)
        await handler.handle(record(one("a"), 0))
    done = await handler.handle(record(one("a"), 0))
    assert done.finalize is not None
    with monkeypatch.context() as patched, pytest.raises(RetryError, match="No space"):
        patched.setattr(store_module, "write_file_atomically", full)
        await done.finalize()
    await done.finalize()
    back = rollback(handler._store.get("anna").chain, None, now=10.0)
    with monkeypatch.context() as patched, pytest.raises(RetryError, match="No space"):
        patched.setattr(store_module, "write_file_atomically", full)
        await handler.handle(command(back))
    await handler.handle(command(back))
    assert handler._store.get("anna").chain.serving == BASE_RELEASE


def command(event: PolicyRelease, offset: int = 0) -> StreamRecord:
    return StreamRecord("policy.releases", 0, offset, event.scenario.encode(), encode(event))


async def published(done: Done) -> list[PolicyRelease]:
    if done.finalize is not None:
        await done.finalize()
    return events(done)


async def test_a_rollback_during_a_step_has_the_last_word_in_the_log_too(tmp_path: Path) -> None:
    handler, learner = make(tmp_path)
    log = await published(await handler.handle(record(one("a"), 0)))
    learner.go.clear()
    step = asyncio.create_task(handler.handle(record(one("b"), 1)))
    await eventually(lambda: learner.begun == 2)
    back = rollback(handler._store.get("anna").chain, None, now=learner.now + 0.5)
    log.append(back)  # in the log before the step's own event
    waiting = asyncio.create_task(handler.handle(command(back)))
    learner.go.set()
    log += await published(await step)
    log += await published(await waiting)
    for number, event in enumerate(log[3:]):  # what the trainer wrote comes back to it
        log += await published(await handler.handle(command(event, number + 1)))
    assert folded("anna", log).serving == handler._store.get("anna").chain.serving == BASE_RELEASE
    assert len(log) == 4


async def test_an_answer_to_a_command_survives_a_crash_before_it_is_out(tmp_path: Path) -> None:
    handler, _ = make(tmp_path)
    await published(await handler.handle(record(one("a"), 0)))
    gone = msgspec.structs.replace(
        rollback(handler._store.get("anna").chain, None, now=10.0),
        serving="anna@00000-gone",
        release_id="anna@00000-gone",
    )
    answered = events(await handler.handle(command(gone)))
    restarted, _ = make(tmp_path)
    assert events(await restarted.handle(command(gone))) == answered != []
