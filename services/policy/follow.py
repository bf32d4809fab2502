"""Follows policy.releases: folds the log into each scenario's chain and has the scenarios serve what it says.

The log is read from its beginning at every start and after every lost connection, and only its outcome is served:
a replay never brings an older release back, not even for a moment.
"""

from __future__ import annotations

import asyncio
from typing import Any

from libs.contracts import PolicyRelease, decode, policy_releases
from libs.contracts.release_chain import Chain, fold
from libs.errors import ContractError, RetryError
from libs.streams.config import ServiceSettings
from libs.streams.follow import read
from libs.streams.retry import Backoff
from libs.streams.types import StreamRecord
from libs.telemetry.logs import get_logger
from services.policy.scenarios import Scenarios

_log = get_logger("policy.follow")


class ReleaseFollower:
    """Runs in the background. `caught_up` is set once everything that was in the log at the start serves."""

    def __init__(
        self,
        settings: ServiceSettings,
        scenarios: Scenarios[Any],
        *,
        topic: str = policy_releases.TOPIC,
        retry_seconds: float = 30.0,
    ) -> None:
        self._settings, self._scenarios, self._topic = settings, scenarios, topic
        self._retry_seconds = retry_seconds
        self._chains: dict[str, Chain] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self.caught_up = asyncio.Event()

    def start(self) -> None:
        self._tasks = [asyncio.create_task(self._follow()), asyncio.create_task(self._retry())]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _follow(self) -> None:
        backoff, attempt = Backoff(), 0
        while True:
            chains: dict[str, Chain] = {}
            behind = True
            try:
                async for record in read(self._settings, [self._topic], follow=True):
                    if record is None:
                        behind, attempt = False, 0
                        await self._take_all(chains)
                    elif (scenario := _apply(chains, record)) is not None and not behind:
                        await self._take(scenario, chains[scenario])
            except RetryError:
                _log.warning("policy.releases is away; serving goes on with the present releases")
            except Exception:  # whatever it was: a follower that ended would serve old releases without a word
                _log.exception("following policy.releases failed; it is read again")
            await asyncio.sleep(backoff.delay(attempt))
            attempt += 1

    async def _take_all(self, chains: dict[str, Chain]) -> None:
        """Newest first, so that the scenarios in use are the ones that find room in memory."""
        lost = self._chains.keys() - chains.keys()
        if lost:
            _log.error("the log no longer holds these scenarios; they keep what serves", scenarios=sorted(lost))
        newest = sorted(chains.values(), key=lambda c: max((r.created_at for r in c.releases.values()), default=0.0))
        for chain in reversed(newest):
            self._chains[chain.scenario] = chain
            await self._scenarios.update(chain.scenario, chain, load=self._scenarios.room())
        self.caught_up.set()

    async def _take(self, scenario: str, chain: Chain) -> None:
        changed = scenario not in self._chains or self._chains[scenario].serving != chain.serving
        self._chains[scenario] = chain
        if changed:
            await self._scenarios.update(scenario, chain)

    async def _retry(self) -> None:
        """A refused release may become readable: a volume that was late, files that were restored."""
        while True:
            await asyncio.sleep(self._retry_seconds)
            for scenario in self._scenarios.behind():
                try:
                    await self._scenarios.update(scenario, self._chains[scenario])
                except Exception:
                    _log.exception("not brought up to date", scenario=scenario)


def _apply(chains: dict[str, Chain], record: StreamRecord) -> str | None:
    """Fold one record; the scenario it belongs to, or None for a record that is no release event."""
    try:
        event = decode(record.value, PolicyRelease)
    except ContractError as error:
        _log.error("release event skipped", record=record.id, error=str(error))
        return None
    chains[event.scenario] = fold(chains.get(event.scenario, Chain(scenario=event.scenario)), event)
    return event.scenario
