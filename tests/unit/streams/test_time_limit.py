"""One timer over many pieces of work: each ends at its own time, and a cancellation from elsewhere stays one."""

from __future__ import annotations

import asyncio

import pytest

from libs.streams.time_limit import TimeLimit


async def for_ever() -> None:
    await asyncio.Event().wait()


async def test_work_over_its_time_is_ended_with_a_timeout_error() -> None:
    limit = TimeLimit(0.01)
    for _ in range(2):  # the timer is set again for work that begins after it went off
        with pytest.raises(TimeoutError), limit.watch() as watched:
            await for_ever()
        assert watched.expired
    task = asyncio.current_task()
    assert task is not None and task.cancelling() == 0


async def test_each_piece_of_many_is_ended_and_what_finished_is_left_alone() -> None:
    limit = TimeLimit(0.01)
    release = asyncio.Event()

    async def one(n: int) -> int:
        with limit.watch():
            await (release.wait() if n % 2 else for_ever())
        return n

    tasks = [asyncio.create_task(one(n)) for n in range(6)]
    await asyncio.sleep(0)
    release.set()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [r for r in results if isinstance(r, int)] == [1, 3, 5]
    assert [type(r) for r in results if not isinstance(r, int)] == [TimeoutError] * 3


async def test_a_timer_that_goes_off_for_ended_work_is_set_again_for_the_next() -> None:
    limit = TimeLimit(0.04)
    with limit.watch():
        await asyncio.sleep(0.02)
    watched = None
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(10.0):
            with limit.watch() as watched:
                await for_ever()
    assert watched is not None and watched.expired


async def test_a_cancellation_from_elsewhere_passes_through() -> None:
    limit = TimeLimit(60.0)
    entered = asyncio.Event()

    async def work() -> None:
        with limit.watch():
            entered.set()
            await for_ever()

    task = asyncio.create_task(work())
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_cancellation_at_the_same_time_wins_over_the_limit() -> None:
    limit = TimeLimit(0.01)

    async def work() -> None:
        with limit.watch():
            try:
                await for_ever()
            except asyncio.CancelledError:
                current = asyncio.current_task()
                assert current is not None
                current.cancel()  # somebody else's, while the limit's own is under way
                raise

    task = asyncio.create_task(work())
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_an_error_of_the_work_is_left_alone() -> None:
    limit = TimeLimit(60.0)
    with pytest.raises(ValueError, match="own"), limit.watch():
        raise ValueError("own")
