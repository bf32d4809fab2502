"""How old a turn's release is, by the release chain that policy.releases tells."""

from __future__ import annotations

import msgspec

from libs.contracts import PolicyRelease, decode
from libs.contracts.release_chain import Chain, fold
from libs.streams.types import StreamRecord


class Serving:
    """The chain of each scenario, as the trainer sees it: what it would drop as stale need not reach it."""

    def __init__(self) -> None:
        self._chains: dict[str, Chain] = {}

    def apply(self, record: StreamRecord) -> None:
        """Take in one event. Events of a scenario arrive in order. Raises ContractError."""
        event = decode(record.value, PolicyRelease)
        chain = self._chains.get(event.scenario) or Chain(scenario=event.scenario)
        self._chains[event.scenario] = fold(chain, msgspec.structs.replace(event, metrics={}))

    def staleness(self, scenario: str, release_id: str) -> int | None:
        """Releases that served since this one; a release that was held back is none. None: it is on no line to the
        serving one, and the trainer has the last word.
        """
        chain = self._chains.get(scenario)
        return chain.staleness(release_id) if chain else 0
