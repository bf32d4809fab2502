"""Turns between scenarios: one at a time, the longest-waiting scenario next, order kept within one."""

from __future__ import annotations

import asyncio

import pytest

from services.trainer.turns import FairTurns


async def take(turns: FairTurns, name: str, log: list[str], gate: asyncio.Event) -> None:
    async with turns.turn(name.partition("-")[0]):
        log.append(name)
        await gate.wait()


async def waiting(turns: FairTurns, names: list[str], log: list[str], gate: asyncio.Event) -> list[asyncio.Task[None]]:
    tasks = []
    for name in names:
        tasks.append(asyncio.create_task(take(turns, name, log, gate)))
        await asyncio.sleep(0)  # each reaches the queue in this order
    return tasks


async def test_a_busy_scenario_does_not_starve_a_quiet_one() -> None:
    turns, log, gate = FairTurns(), list[str](), asyncio.Event()
    tasks = await waiting(turns, ["busy-1", "busy-2", "busy-3", "busy-4", "quiet-1", "other-1"], log, gate)
    assert log == ["busy-1"]
    gate.set()
    await asyncio.gather(*tasks)
    assert log == ["busy-1", "quiet-1", "other-1", "busy-2", "busy-3", "busy-4"]


async def test_a_failure_and_a_cancellation_pass_the_turn_on() -> None:
    turns, log, gate = FairTurns(), list[str](), asyncio.Event()
    with pytest.raises(RuntimeError):
        async with turns.turn("a"):
            raise RuntimeError
    first, second, third = await waiting(turns, ["a-1", "b-1", "c-1"], log, gate)
    second.cancel()
    await asyncio.gather(second, return_exceptions=True)
    gate.set()
    await asyncio.gather(first, third)
    assert log == ["a-1", "c-1"]


async def test_never_two_at_once() -> None:
    turns, inside, most = FairTurns(), 0, 0

    async def work(name: str) -> None:
        nonlocal inside, most
        async with turns.turn(name):
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(0)
            inside -= 1

    await asyncio.gather(*(work(f"s{i % 3}") for i in range(30)))
    assert (most, inside) == (1, 0)
