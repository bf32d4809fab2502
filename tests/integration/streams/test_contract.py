"""What the loop promises, on the in-memory broker and on a real one alike."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from libs.contracts import DeadLetter, decode
from libs.errors import ContractError, RetryError, StopError
from libs.streams.config import ServiceSettings
from libs.streams.loop import StreamLoop
from libs.streams.types import Done, Held, Output, Partition, Position, StreamRecord
from tests.eventually import eventually
from tests.integration.streams.worlds import KafkaWorld, MemoryWorld, Script, World, loop_of, put

pytestmark = pytest.mark.integration


@pytest.fixture(params=["memory", "kafka"])
async def world(request: pytest.FixtureRequest, unique: str) -> World:
    if request.param == "memory":
        return MemoryWorld()
    settings: ServiceSettings = request.getfixturevalue("kafka_settings")
    return await KafkaWorld(settings, unique).open()


@asynccontextmanager
async def running(loop: StreamLoop) -> AsyncIterator[asyncio.Task[None]]:
    """Run a loop and stop it gracefully."""
    task = asyncio.create_task(loop.run())
    try:
        await eventually(lambda: loop.assigned.is_set() or task.done(), why="assigned")
        yield task
    finally:
        loop.stop()
        await asyncio.gather(task, return_exceptions=True)


def copy(record: StreamRecord) -> Done:
    return Done(outputs=(Output("turns.judged", record.value.decode(), record.value),))


async def values(world: World, topic: str) -> Counter[str]:
    return Counter(record.value.decode() for record in await world.records(topic))


async def letters(world: World) -> list[DeadLetter]:
    return [decode(record.value, DeadLetter) for record in await world.records(world.dead)]


async def total_committed(world: World, group: str) -> int:
    return sum((await world.committed(group)).values())


async def test_every_record_is_handled_once_and_committed(world: World, unique: str) -> None:
    sent = [str(n) for n in range(200)]
    await put(world, sent)
    handler = Script(copy)
    async with running(loop_of(world, handler, unique)):
        await eventually(lambda: len(handler.seen) >= 200)
    assert Counter(handler.values) == Counter(sent)
    assert await values(world, world.target) == Counter(sent)
    assert await total_committed(world, unique) == 200


async def test_nothing_behind_an_unfinished_record_is_committed(world: World, unique: str) -> None:
    sent = [str(n) for n in range(40)]
    await put(world, sent, key=lambda _: "one")  # one partition
    stuck = asyncio.Event()

    async def wait_on_ten(record: StreamRecord) -> Done:
        if record.value == b"10":
            await stuck.wait()
        return Done()

    first = Script(wait_on_ten)
    async with running(loop_of(world, first, unique, drain_seconds=0.05)):
        await eventually(lambda: len(first.seen) == 40)
    assert await total_committed(world, unique) == 10
    second = Script(copy)
    async with running(loop_of(world, second, unique)):
        await eventually(lambda: len(second.seen) == 30)
    assert second.values == sent[10:]


async def test_held_records_are_committed_with_the_record_that_completes_them(world: World, unique: str) -> None:
    await put(world, [str(n) for n in range(6)], key=lambda _: "one")
    waiting: list[StreamRecord] = []

    def by_four(record: StreamRecord) -> Done | Held:
        if len(waiting) < 3:
            waiting.append(record)
            return Held()
        done = Done(outputs=(Output("turns.judged", "b", b"batch"),), completes=tuple(waiting))
        waiting.clear()
        return done

    handler = Script(by_four)
    async with running(loop_of(world, handler, unique, max_in_flight=1)):
        await eventually(lambda: len(handler.seen) == 6)
    assert await values(world, world.target) == Counter({"batch": 1})
    assert await total_committed(world, unique) == 4
    again = Script(lambda _: Done())
    async with running(loop_of(world, again, unique)):
        await eventually(lambda: len(again.seen) == 2)
    assert again.values == ["4", "5"]


async def test_a_tick_completes_held_records(world: World, unique: str) -> None:
    await put(world, ["a", "b", "c"], key=lambda _: "one")
    waiting: list[StreamRecord] = []

    def hold(record: StreamRecord) -> Held:
        waiting.append(record)
        return Held()

    def flush() -> Done | None:
        if len(waiting) < 3:
            return None
        done = Done(outputs=(Output("turns.judged", "t", b"tick"),), completes=tuple(waiting))
        waiting.clear()
        return done

    async with running(loop_of(world, Script(hold, flush), unique)):

        async def all_committed() -> bool:
            return await total_committed(world, unique) == 3

        await eventually(all_committed)
    assert await values(world, world.target) == Counter({"tick": 1})


async def test_a_faulty_record_is_set_aside_whole_and_the_others_go_on(world: World, unique: str) -> None:
    await put(world, [str(n) for n in range(20)])

    def refuse_seven(record: StreamRecord) -> Done:
        if record.value == b"7":
            raise ContractError("field `x` is missing")
        return copy(record)

    handler = Script(refuse_seven)
    async with running(loop_of(world, handler, unique)):
        await eventually(lambda: len(handler.seen) == 20)
    assert set(await values(world, world.target)) == {str(n) for n in range(20)} - {"7"}
    (letter,) = await letters(world)
    assert (letter.reason, letter.error, letter.attempts) == ("contract", "field `x` is missing", 1)
    assert await total_committed(world, unique) == 20


async def test_a_passing_cause_is_tried_again_until_it_passes(world: World, unique: str) -> None:
    await put(world, ["x"])
    tries = 0

    def third_time(record: StreamRecord) -> Done:
        nonlocal tries
        tries += 1
        if tries < 12:  # more often than the tries of a faulty record
            raise RetryError("away", reason="away")
        return copy(record)

    handler = Script(third_time)
    async with running(loop_of(world, handler, unique, max_attempts=2)):
        await eventually(lambda: tries == 12)
    assert await values(world, world.target) == Counter({"x": 1})
    assert await letters(world) == []


async def test_any_other_exception_is_tried_a_few_times_and_then_set_aside(world: World, unique: str) -> None:
    await put(world, ["x"])

    def fail(_record: StreamRecord) -> Done:
        raise KeyError("surprise")

    handler = Script(fail)
    async with running(loop_of(world, handler, unique, max_attempts=3)):
        (letter,) = await eventually(lambda: letters(world))
    assert (letter.reason, letter.attempts) == ("handler_fault", 3)
    assert "KeyError" in letter.error
    assert len(handler.seen) == 3


async def test_a_handler_that_hangs_is_cut_off(world: World, unique: str) -> None:
    await put(world, ["x"])

    async def hang(_record: StreamRecord) -> Done:
        await asyncio.Event().wait()
        raise AssertionError

    async with running(loop_of(world, Script(hang), unique, handle_timeout_seconds=0.05, max_attempts=2)):
        (letter,) = await eventually(lambda: letters(world))
    assert letter.reason == "handle_timeout"
    assert "stream_handle_timeout_seconds" in letter.error


async def test_too_many_dead_letters_in_a_row_stop_the_loop(world: World, unique: str) -> None:
    await put(world, [str(n) for n in range(10)], key=lambda _: "one")

    def refuse(_record: StreamRecord) -> Done:
        raise ContractError("no")

    loop = loop_of(world, Script(refuse), unique, dead_letters_in_a_row=4, max_in_flight=1)
    async with running(loop) as task:
        with pytest.raises(StopError, match="4 records in a row") as raised:
            await asyncio.wait_for(asyncio.shield(task), 60)
    assert raised.value.reason == "dead_letter_limit"
    assert len(await letters(world)) == 4
    assert await total_committed(world, unique) == 4  # the fifth is read again after the restart


async def test_a_stop_error_ends_the_loop_and_leaves_the_record(world: World, unique: str) -> None:
    await put(world, ["x"])

    def stop(_record: StreamRecord) -> Done:
        raise StopError("must not go on", reason="test")

    async with running(loop_of(world, Script(stop), unique)) as task:
        with pytest.raises(StopError, match="must not go on"):
            await asyncio.wait_for(asyncio.shield(task), 60)
    assert await total_committed(world, unique) == 0
    assert await letters(world) == []


async def test_state_is_written_between_the_output_and_the_commit(world: World, unique: str) -> None:
    await put(world, ["x"])
    told: list[tuple[int, int]] = []

    def with_state(record: StreamRecord) -> Done:
        async def finalize() -> None:
            told.append((len(await world.records(world.target)), await total_committed(world, unique)))

        return Done(outputs=copy(record).outputs, finalize=finalize)

    async with running(loop_of(world, Script(with_state), unique)):
        await eventually(lambda: told)
    assert told == [(1, 0)]
    assert await total_committed(world, unique) == 1


async def test_state_that_cannot_be_written_is_no_dead_letter(world: World, unique: str) -> None:
    await put(world, ["x"])

    def with_state(_record: StreamRecord) -> Done:
        async def finalize() -> None:
            raise KeyError("broken")

        return Done(finalize=finalize)

    async with running(loop_of(world, Script(with_state), unique, max_attempts=2)) as task:
        with pytest.raises(StopError, match="finalize failed 2 times"):
            await asyncio.wait_for(asyncio.shield(task), 60)
    assert await letters(world) == []
    assert await total_committed(world, unique) == 0


async def test_an_output_that_is_too_large_takes_its_held_records_along(world: World, unique: str) -> None:
    await put(world, ["a", "b"], key=lambda _: "one")
    waiting: list[StreamRecord] = []

    def pair(record: StreamRecord) -> Done | Held:
        if not waiting:
            waiting.append(record)
            return Held()
        # A large value would travel as a ticket; nothing helps against a large key.
        return Done(outputs=(Output("turns.judged", "x" * 9_000_000, b"x"),), completes=tuple(waiting))

    async with running(loop_of(world, Script(pair), unique, max_in_flight=1)):

        async def both() -> list[DeadLetter] | None:
            found = await letters(world)
            return found if len(found) == 2 else None

        found = await eventually(both)
    assert {letter.reason for letter in found} == {"output_too_large"}
    assert await total_committed(world, unique) == 2


async def test_a_record_over_the_limit_arrives_whole(kafka_settings: ServiceSettings, unique: str, home: Path) -> None:
    world = await KafkaWorld(kafka_settings, unique).open()
    large = "y" * 9_000_000
    await put(world, [large], key=lambda _: "one")
    handler = Script(lambda record: Done(outputs=(Output("turns.judged", "one", record.value),)))
    async with running(loop_of(world, handler, unique)):
        await eventually(lambda: handler.seen)
    assert handler.values == [large]
    (copied,) = await world.records(world.target)
    assert len(copied.value) < 1000, "it travels as a ticket"


async def test_a_position_of_its_own_comes_before_the_committed_one(world: World, unique: str) -> None:
    await put(world, [str(n) for n in range(10)], key=lambda _: "one")
    first = Script(lambda _: Done())
    async with running(loop_of(world, first, unique)):
        await eventually(lambda: len(first.seen) == 10)
    where = (first.seen[0].topic, first.seen[0].partition)
    asked: list[set[Partition]] = []

    async def from_the_checkpoint(partitions: Collection[Partition]) -> Position:
        asked.append(set(partitions))
        return Position({where: 4})

    second = Script(lambda _: Done())
    async with running(loop_of(world, second, unique, start_positions=from_the_checkpoint)):
        await eventually(lambda: len(second.seen) == 6)
    assert second.values == ["4", "5", "6", "7", "8", "9"]
    assert any(where in partitions for partitions in asked)


async def test_no_more_records_than_allowed_are_in_flight(world: World, unique: str) -> None:
    await put(world, [str(n) for n in range(30)])
    now = most = 0
    go = asyncio.Event()

    async def count(_record: StreamRecord) -> Done:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await go.wait()
        now -= 1
        return Done()

    handler = Script(count)
    async with running(loop_of(world, handler, unique, max_in_flight=5)):
        await eventually(lambda: now == 5)
        go.set()
        await eventually(lambda: len(handler.seen) == 30)
    assert most == 5


async def test_a_second_member_takes_over_without_loss_or_repeat(world: World, unique: str) -> None:
    sent = [str(n) for n in range(300)]
    await put(world, sent[:150])

    async def slowly(record: StreamRecord) -> Done:
        await asyncio.sleep(0)
        return copy(record)

    one, two = Script(slowly), Script(slowly)
    async with running(loop_of(world, one, unique, max_in_flight=8)) as _:
        await eventually(lambda: len(one.seen) >= 20)
        async with running(loop_of(world, two, unique, max_in_flight=8)):
            await put(world, sent[150:])
            await eventually(lambda: len({*one.values, *two.values}) == 300)
            await eventually(lambda: len(two.seen) > 0, why="the second member works as well")
    assert await values(world, world.target) == Counter(sent)
    assert any(one.gone), "the first member was told to let go"


async def test_what_a_member_holds_is_read_by_the_next_owner(world: World, unique: str) -> None:
    await put(world, ["a", "b", "c", "d"])
    one, two = Script(lambda _: Held()), Script(lambda _: Done())
    async with running(loop_of(world, one, unique)):
        await eventually(lambda: len(one.seen) == 4)
        async with running(loop_of(world, two, unique)):
            await eventually(lambda: len(one.seen) + len(two.seen) >= 8)
    third = Script(lambda _: Done())
    async with running(loop_of(world, third, unique)):
        await eventually(lambda: {*two.values, *third.values} == {"a", "b", "c", "d"})
