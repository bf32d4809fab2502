"""FairSlots: bounded, round robin between scenarios, nothing lost when a waiter is cancelled."""

from __future__ import annotations

import asyncio
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from services.judge.fairness import FairSlots


async def test_scenarios_take_turns() -> None:
    slots = FairSlots(1)
    order: list[str] = []

    async def one(scenario: str) -> None:
        async with slots.hold(scenario):
            order.append(scenario)
            await asyncio.sleep(0)

    async with slots.hold("first"):
        tasks = [asyncio.create_task(one(s)) for s in "aaaabbc"]
        await asyncio.sleep(0)
    await asyncio.gather(*tasks)
    assert order == list("abcabaa")


async def test_a_slot_handed_to_a_waiter_that_is_cancelled_in_the_same_moment_comes_back() -> None:
    slots = FairSlots(1)

    async def wait() -> None:
        async with slots.hold("s"):
            await asyncio.Event().wait()

    async with slots.hold("s"):
        waiter = asyncio.create_task(wait())
        await asyncio.sleep(0)
    waiter.cancel()  # the slot is its own already, but it has not run since
    await asyncio.gather(waiter, return_exceptions=True)
    async with asyncio.timeout(1), slots.hold("s"):
        pass


@settings(deadline=None)
@given(st.integers(1, 4), st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=25))
def test_never_more_than_the_limit_and_everybody_gets_through(limit: int, work: list[tuple[str, bool]]) -> None:
    async def run() -> None:
        slots = FairSlots(limit)
        busy = peak = 0
        done: Counter[str] = Counter()

        async def one(scenario: str) -> None:
            nonlocal busy, peak
            async with slots.hold(scenario):
                busy += 1
                peak = max(peak, busy)
                try:
                    await asyncio.sleep(0)
                finally:
                    busy -= 1
                done[scenario] += 1

        tasks = []
        for scenario, cancel in work:
            task = asyncio.create_task(one(scenario))
            tasks.append(task)
            await asyncio.sleep(0)
            if cancel:
                task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        finished = Counter(s for (s, _), r in zip(work, results, strict=True) if r is None)
        assert done == finished
        assert peak <= limit
        async with asyncio.timeout(1), slots.hold("after"):  # every slot came back
            pass

    asyncio.run(run())
