"""The batcher without a broker: what makes a batch, what is dropped and why, what a crash repeats."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from prometheus_client import REGISTRY

from libs.contracts import BASE_RELEASE, PolicyRelease, Tombstone, TrainingBatch, decode, encode
from libs.errors import ContractError, RetryError
from libs.streams.forgotten import Forgotten
from libs.streams.types import Done, Held, StreamRecord
from services.batcher.config import BatcherSettings
from services.batcher.handler import BatchHandler, batch_id_of
from services.batcher.releases import Serving
from services.batcher.seen import MemorySeen
from tests.judged import EXAMPLES, judged, record_of

RELEASED = decode((EXAMPLES / "policy.releases/v1/released.json").read_bytes(), PolicyRelease)


class World:
    """A handler, its clock, and what it has produced."""

    def __init__(self, **settings: Any) -> None:
        self.seen = MemorySeen()
        self.serving = Serving()
        self.time = 0.0
        self.offset = 0
        given = {"batcher_batch_size": 3, "batcher_max_age_seconds": 10.0} | settings
        self.handler = BatchHandler(
            BatcherSettings(**given), self.seen, self.serving, clock=lambda: self.time, now=lambda: 1000.0 + self.time
        )

    async def give(self, feedback_id: str, scenario: str = "homework", **changes: Any) -> tuple[StreamRecord, Any]:
        self.offset += 1
        record = record_of(judged(feedback_id, scenario, **changes), self.offset)
        return record, await self.handler.handle(record)


def batch_of(done: Any) -> TrainingBatch:
    assert isinstance(done, Done)
    (output,) = done.outputs
    assert output.topic == "training.batches"
    return decode(output.value, TrainingBatch)


def ids(batch: TrainingBatch) -> list[str]:
    return [sample.feedback_id for sample in batch.samples]


def dropped(scenario: str, reason: str) -> float:
    labels = {"scenario": scenario, "reason": reason}
    return REGISTRY.get_sample_value("clawback_batcher_dropped_total", labels) or 0.0


async def finalized(done: Any) -> None:
    assert isinstance(done, Done)
    assert done.finalize is not None
    await done.finalize()


async def test_the_turn_that_fills_the_batch_completes_the_ones_that_waited() -> None:
    world = World()
    first, one = await world.give("f1")
    second, two = await world.give("f2")
    assert isinstance(one, Held)
    assert isinstance(two, Held)
    _, done = await world.give("f3")
    batch = batch_of(done)
    assert ids(batch) == ["f1", "f2", "f3"]
    assert batch.batch_id == batch_id_of(["f1", "f2", "f3"])
    assert done.completes == (first, second)
    assert done.outputs[0].key == "homework"
    sample = batch.samples[0]
    turn = judged("f1")
    assert (sample.reward, sample.hints, sample.request, sample.capture, sample.release_id) == (
        turn.reward,
        turn.hints,
        turn.request,
        turn.capture,
        turn.release_id,
    )


async def test_another_scenario_is_not_held_up() -> None:
    world = World(batcher_batch_size=2)
    await world.give("slow", "a")
    await world.give("b1", "b")
    _, done = await world.give("b2", "b")
    assert ids(batch_of(done)) == ["b1", "b2"]
    assert batch_of(done).scenario == "b"


async def test_a_turn_waits_no_longer_than_the_age_allows() -> None:
    world = World()
    record, _ = await world.give("f1")
    world.time = 9.9
    assert await world.handler.tick() == []
    world.time = 10.0
    (done,) = await world.handler.tick()
    assert ids(batch_of(done)) == ["f1"]
    assert done.completes == (record,)
    assert await world.handler.tick() == []


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"disposition": "dropped", "reason": "no_signal"}, "no_signal"),
        ({"capture": None}, "not_captured"),
        ({"release_id": "homework@00001-0badc0de"}, "stale"),
    ],
)
async def test_what_cannot_train_is_counted_by_reason(changes: dict[str, Any], reason: str) -> None:
    world = World(batcher_batch_size=1, batcher_max_staleness=2)
    releases(world, 4)
    before = dropped("homework", reason)
    _, done = await world.give("f1", **changes)
    assert done == Done()
    assert dropped("homework", reason) == before + 1


def release(world: World, number: int, scenario: str = "homework", event: Any = "released", parent: int = -1) -> None:
    """Tell the batcher of candidate `number`, by default made from the one before it and serving now."""
    name = [BASE_RELEASE, *(f"{scenario}@{n:05d}-0badc0de" for n in range(1, number + 1))]
    before = name[number - 1 if parent < 0 else parent]
    made = msgspec.structs.replace(
        RELEASED, event=event, release_id=name[number], parent_id=before, scenario=scenario, number=number,
        serving=name[number] if event == "released" else before,
    )  # fmt: skip
    world.serving.apply(StreamRecord("policy.releases", 0, number, None, encode(made)))


def releases(world: World, last: int) -> None:
    for number in range(1, last + 1):
        release(world, number)


async def test_staleness_counts_per_scenario_and_the_bound_itself_is_fresh() -> None:
    world = World(batcher_batch_size=1, batcher_max_staleness=2)
    releases(world, 3)
    _, at_the_bound = await world.give("f1", release_id="homework@00001-0badc0de")
    assert ids(batch_of(at_the_bound)) == ["f1"]
    _, other = await world.give("f2", "other", release_id="base")
    assert ids(batch_of(other)) == ["f2"]
    _, unknown = await world.give("f3", release_id="homework@00009-0badc0de")
    assert ids(batch_of(unknown)) == ["f3"], "no ancestor of the serving one: the trainer has the last word"


async def test_a_release_that_the_gate_held_back_ages_nothing() -> None:
    world = World(batcher_batch_size=1, batcher_max_staleness=2)
    release(world, 1)
    for number in range(2, 7):
        release(world, number, event="held", parent=1)
    release(world, 7, parent=1)
    for n, served in enumerate(["homework@00001-0badc0de", BASE_RELEASE]):
        _, done = await world.give(f"f{n}", release_id=served)
        assert ids(batch_of(done)) == [f"f{n}"]
    releases(world, 8)
    before = dropped("homework", "stale")
    _, done = await world.give("f9", release_id=BASE_RELEASE)
    assert (done, dropped("homework", "stale")) == (Done(), before + 1)


async def test_a_turn_that_becomes_stale_while_it_waits_is_dropped_and_completed() -> None:
    world = World(batcher_max_staleness=2)
    stale, _ = await world.give("f1", release_id="base")
    await world.give("f2", release_id="homework@00003-0badc0de")
    before = dropped("homework", "stale")
    releases(world, 3)
    (done,) = await world.handler.tick()
    assert done == Done(completes=(stale,))
    assert dropped("homework", "stale") == before + 1
    world.time = 100.0
    (left,) = await world.handler.tick()
    assert ids(batch_of(left)) == ["f2"]


async def test_a_repeat_is_dropped_while_waiting_while_flying_and_after() -> None:
    world = World(batcher_batch_size=2)
    before = dropped("homework", "repeated")
    await world.give("f1")
    _, waiting = await world.give("f1")
    _, done = await world.give("f2")
    _, flying = await world.give("f1")
    await finalized(done)
    _, remembered = await world.give("f2")
    assert [waiting, flying, remembered] == [Done()] * 3
    assert dropped("homework", "repeated") == before + 3
    assert world.seen.batches == {("homework", f): batch_of(done).batch_id for f in ("f1", "f2")}


async def test_the_same_feedback_id_in_another_scenario_is_no_repeat() -> None:
    world = World(batcher_batch_size=1)
    _, one = await world.give("f1", "a")
    await finalized(one)
    _, two = await world.give("f1", "b")
    assert ids(batch_of(two)) == ["f1"]


async def test_nothing_is_remembered_before_the_batch_is_out() -> None:
    world = World(batcher_batch_size=1)
    _, done = await world.give("f1")
    assert world.seen.batches == {}
    await finalized(done)
    assert world.seen.batches == {("homework", "f1"): batch_of(done).batch_id}


async def test_after_a_crash_the_same_records_make_the_same_batches() -> None:
    batches = []
    for _ in range(2):  # the second process reads again what the first had not committed
        world = World(batcher_batch_size=3)
        done = [(await world.give(f"f{n}"))[1] for n in range(7)]
        batches.append([batch_of(each).batch_id for each in done if isinstance(each, Done)])
    assert batches[0] == batches[1]
    assert len(batches[0]) == 2


async def test_arrival_order_survives_slow_look_ups() -> None:
    world = World(batcher_batch_size=4)
    gates = [asyncio.Event() for _ in range(4)]

    async def batch_of_slow(_scenario: str, feedback_id: str) -> None:
        await gates[int(feedback_id)].wait()

    world.seen.batch_of = batch_of_slow  # type: ignore[method-assign,assignment]
    tasks = [asyncio.create_task(world.give(str(n))) for n in range(4)]
    for gate in reversed(gates):
        gate.set()
        await asyncio.sleep(0)
    results = [(await task)[1] for task in tasks]
    (done,) = [result for result in results if isinstance(result, Done)]
    assert ids(batch_of(done)) == ["0", "1", "2", "3"]


async def test_a_partition_that_moves_takes_its_turns_along() -> None:
    world = World(batcher_batch_size=2)
    await world.give("f1")
    await world.handler.revoked([("turns.judged", 0)])
    _, result = await world.give("f1")
    assert isinstance(result, Held), "it is read again and is no repeat"


async def test_redis_away_is_a_passing_cause_and_holds_nothing() -> None:
    world = World(batcher_batch_size=1)

    async def away(_scenario: str, _feedback_id: str) -> None:
        raise RetryError("redis", reason="redis_connection")

    good = world.seen.batch_of
    world.seen.batch_of = away  # type: ignore[method-assign,assignment]
    with pytest.raises(RetryError):
        await world.give("f1")
    world.seen.batch_of = good  # type: ignore[method-assign]
    _, done = await world.give("f1")
    assert ids(batch_of(done)) == ["f1"]


async def test_a_broken_record_names_its_field() -> None:
    world = World()
    with pytest.raises(ContractError, match="feedback_id"):
        await world.handler.handle(StreamRecord("turns.judged", 0, 1, None, b'{"version": 1}'))


async def test_turns_that_do_not_fit_together_go_out_apart() -> None:
    size = len(record_of(judged("f1"), 1).value)
    world = World(batcher_batch_size=9, batcher_max_bytes=int(size * 2.5))
    for n in (1, 2):
        assert isinstance((await world.give(f"f{n}"))[1], Held)
    _, third = await world.give("f3")
    assert isinstance(third, Held)
    (done,) = await world.handler.tick()
    assert ids(batch_of(done)) == ["f1", "f2"]


async def test_a_turn_whose_person_is_forgotten_while_it_waits_goes_to_no_batch() -> None:
    world, forgotten = World(), Forgotten()
    world.handler.leave_out(forgotten)
    mine, held = await world.give("f1", tenant="ann", session_id="s1")
    other, _ = await world.give("f2", tenant="bob", session_id="s1")
    assert isinstance(held, Held)
    before = dropped("homework", "forgotten")
    forgotten.add(Tombstone(kind="session", value="s1", tenant="ann", at=2e9))
    assert await world.handler.tick() == [Done(completes=(mine,))], "its offset is let go"
    assert dropped("homework", "forgotten") == before + 1
    world.time = 10.0
    (done,) = await world.handler.tick()
    assert ids(batch_of(done)) == ["f2"] and done.completes == (other,)
