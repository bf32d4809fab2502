"""Exponential backoff with full jitter (AWS Architecture Blog, "Exponential Backoff And Jitter")."""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """`delay(n)` is uniform over (0, min(max_seconds, base_seconds * 2**n)], n counting from 0."""

    base_seconds: float = 0.1
    max_seconds: float = 10.0

    def bound(self, attempt: int) -> float:
        """The longest delay before try `attempt + 1`, in seconds."""
        return min(self.max_seconds, self.base_seconds * 2.0 ** min(attempt, 32))

    def delay(self, attempt: int) -> float:
        """A delay in seconds, never 0 so that a failing call yields."""
        return self.bound(attempt) * (1.0 - 0.99 * random.random())
