"""Wait for something that other processes or tasks bring about: poll the condition itself, never a fixed time."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any


async def eventually(holds: Callable[[], Any | Awaitable[Any]], *, within_seconds: float = 60.0, why: str = "") -> Any:
    """Return the condition's first true value. Fails the test when it does not hold in time."""
    deadline = asyncio.get_running_loop().time() + within_seconds
    while True:
        value = holds()
        if inspect.isawaitable(value):
            value = await value
        if value:
            return value
        assert asyncio.get_running_loop().time() < deadline, f"not within {within_seconds} s: {why or holds}"
        await asyncio.sleep(0.02)
