"""The serving release of each scenario, as policy.releases tells it."""

from __future__ import annotations

from libs.contracts import PolicyRelease, decode
from libs.contracts.policy_releases import release_number
from libs.streams.types import StreamRecord


class Serving:
    """`number(scenario)` is 0 until its first release."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def apply(self, record: StreamRecord) -> None:
        """Take in one event. Events of a scenario arrive in order. Raises ContractError."""
        event = decode(record.value, PolicyRelease)
        self._numbers[event.scenario] = release_number(event.serving)

    def number(self, scenario: str) -> int:
        return self._numbers.get(scenario, 0)
