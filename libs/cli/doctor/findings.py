"""What the doctor looks at and what it finds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Severity = Literal["stops", "costs", "note"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One cause: what it is, the figure that shows it, what to do. `stops`: no signal at all while it lasts."""

    cause: str  # snake_case
    severity: Severity
    scenario: str  # "" for the whole system
    says: str
    figure: str
    fix: str


@dataclass(frozen=True, slots=True)
class System:
    """What the doctor looked at. `metrics`: (name, labels) -> value, of all services together."""

    status: Mapping[str, Any]  # the monitor's document
    window: str = "1h"
    down: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # service -> failing check -> why
    metrics: Mapping[tuple[str, frozenset[tuple[str, str]]], float] = field(default_factory=dict)
    batch_size: int = 4
    batch_max_age_seconds: float = 60.0

    def total(self, name: str, **labels: str) -> float:
        """Sum of a metric's samples that carry these labels."""
        want = set(labels.items())
        return sum(value for (known, have), value in self.metrics.items() if known == name and want <= have)
