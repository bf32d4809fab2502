"""Means over seeds with 95 % intervals (Student's t), and how alike two texts are. Standard library only."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, sqrt
from statistics import fmean, stdev

from experiments.homework.scoring import words

# Two-sided 97.5 % quantiles of Student's t by degrees of freedom.
_T = {
    1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262, 10: 2.228,
    11: 2.201, 12: 2.179, 13: 2.160, 14: 2.145, 15: 2.131, 16: 2.120, 17: 2.110, 18: 2.101, 19: 2.093, 20: 2.086,
}  # fmt: skip
_T_LIMIT = 1.96


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean over `n` seeds with its 95 % interval; infinitely wide with fewer than two."""

    mean: float
    low: float
    high: float
    n: int

    def __str__(self) -> str:
        if self.n < 2:
            return f"{self.mean:.2f} (one seed)"
        return f"{self.mean:.2f} [{self.low:.2f}, {self.high:.2f}]"

    def apart_from(self, other: Interval) -> bool:
        """Whether the two intervals do not overlap."""
        return self.low > other.high or self.high < other.low


def interval(values: Sequence[float]) -> Interval:
    """Mean and 95 % interval of `values`, which must not be empty."""
    n, mean = len(values), fmean(values)
    if n < 2:
        return Interval(mean, -inf, inf, n)
    half = _T.get(n - 1, _T_LIMIT) * stdev(values) / sqrt(n)
    return Interval(mean, mean - half, mean + half, n)


def likeness(before: str, after: str) -> float:
    """How much of the word sequence two texts share, 0 to 1 (difflib's ratio over words)."""
    return difflib.SequenceMatcher(None, words(before), words(after), autojunk=False).ratio()
