"""Which release serves each scenario, and which of them are in memory.

A swap is one assignment on the event loop: requests that come later get the new release, those that run keep theirs.
A release that cannot be loaded never replaces one that serves.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from libs.contracts import BASE_RELEASE, Adapter
from libs.contracts.policy_releases import release_number
from libs.contracts.release_chain import Chain
from libs.learning.engine.refused import ReleaseRefused
from libs.telemetry import metrics
from libs.telemetry.logs import get_logger
from services.policy.names import DEFAULT_SCENARIO

_log = get_logger("policy.scenarios")


class Named(Protocol):
    """Anything that serves under a release id: weights in this process, or an adapter's name in another engine."""

    @property
    def release_id(self) -> str: ...


T = TypeVar("T", bound=Named)


@dataclass(frozen=True, slots=True)
class Held(Generic[T]):
    """A release that can serve now, and what it counts against the budget."""

    release: T
    bytes_held: int


Load = Callable[[str, Adapter], Awaitable[Held[T]]]  # raises ReleaseRefused


class Scenarios(Generic[T]):
    """Belongs to the event loop's thread; releases are loaded one at a time."""

    def __init__(
        self,
        base: T,
        load: Load[T],
        *,
        budget_bytes: int,
        on_change: Callable[[Iterable[T]], None] = lambda serving: None,
        load_base: Callable[[str], Awaitable[Held[T]]] | None = None,
    ) -> None:
        """`load_base` is for engines in which a scenario may have replaced the base, to be put back."""
        self._base, self._load, self._load_base = base, load, load_base
        self._budget, self._on_change = budget_bytes, on_change
        self._chains: dict[str, Chain] = {}
        self._resident: OrderedDict[str, Held[T]] = OrderedDict()  # least recently used first
        self._lock = asyncio.Lock()
        self._loading: set[asyncio.Future[None]] = set()

    def serving(self) -> dict[str, str]:
        """Release by scenario: what is in memory, else what will be loaded when it is asked for."""
        return {name: self._resident[name].release.release_id if name in self._resident else chain.serving
                for name, chain in self._chains.items()}  # fmt: skip

    def label(self, scenario: str) -> str:
        """The scenario as a metric label: names that only clients know must not grow the metrics without bound."""
        return scenario if scenario in self._chains or scenario == DEFAULT_SCENARIO else "other"

    def behind(self) -> list[str]:
        """Scenarios in memory that serve another release than their chain says."""
        return [n for n, held in self._resident.items() if held.release.release_id != self._chains[n].serving]

    async def acquire(self, scenario: str) -> T:
        """The release for one new request; a parked one is read from disk first. Raises ReleaseRefused."""
        chain = self._chains.get(scenario)
        if chain is None:
            return self._base
        if scenario not in self._resident and chain.serving != BASE_RELEASE:
            # A client that leaves meanwhile must not break a load off half-way: others wait for it, and an engine may
            # have taken the weights already.
            loading = asyncio.ensure_future(self._bring_absent(scenario))
            self._loading.add(loading)
            loading.add_done_callback(self._loading.discard)
            await asyncio.shield(loading)
        held = self._resident.get(scenario)
        if held is None:
            return self._base
        self._resident.move_to_end(scenario)
        return held.release

    async def _bring_absent(self, scenario: str) -> None:
        async with self._lock:
            if scenario not in self._resident:
                await self._bring(scenario)

    async def update(self, scenario: str, chain: Chain, *, load: bool = True) -> bool:
        """Take over a scenario's chain and serve what it says. Returns whether that release serves now.

        `load` false only notes it, for a start with more scenarios than fit into memory.
        """
        self._chains[scenario] = chain
        if not load:
            return False
        async with self._lock:
            return await self._bring(scenario)

    def room(self) -> bool:
        """Whether memory is left for another release of the size seen so far."""
        held = [loaded.bytes_held for loaded in self._resident.values()]
        return not held or sum(held) + max(held) <= self._budget

    async def _bring(self, scenario: str) -> bool:
        """Load what serves; where it is refused keep the present one, or take its nearest usable ancestor."""
        chain = self._chains[scenario]
        present = self._resident.get(scenario)
        if present is not None and present.release.release_id == chain.serving:
            return True
        candidates = [chain.serving] if present is not None else chain.lineage()
        for release_id in candidates:
            known = release_id == BASE_RELEASE or release_id in chain.releases
            if known and (loaded := await self._try(scenario, chain, release_id)):
                self._set(scenario, loaded)
                return release_id == chain.serving
        self._note(scenario)
        return False

    async def _try(self, scenario: str, chain: Chain, release_id: str) -> Held[T] | None:
        started = time.perf_counter()
        try:
            if release_id == BASE_RELEASE:
                return await self._load_base(scenario) if self._load_base else Held(self._base, 0)
            loaded = await self._load(release_id, chain.releases[release_id].weights)
        except ReleaseRefused as error:
            metrics.POLICY_REFUSED.labels(scenario, error.reason).inc()
            _log.error("release refused", scenario=scenario, release=release_id, reason=error.reason, error=str(error))
            return None
        except Exception:  # out of memory, a library's own error: what serves must go on serving
            metrics.POLICY_REFUSED.labels(scenario, "load_failed").inc()
            _log.exception("release refused", scenario=scenario, release=release_id, reason="load_failed")
            return None
        metrics.POLICY_RELOAD_SECONDS.observe(time.perf_counter() - started)
        return loaded

    def _set(self, scenario: str, loaded: Held[T]) -> None:
        self._resident[scenario] = loaded
        self._resident.move_to_end(scenario)
        while sum(held.bytes_held for held in self._resident.values()) > self._budget and len(self._resident) > 1:
            oldest = next(name for name, held in self._resident.items())
            if oldest == scenario:
                break
            del self._resident[oldest]
            _log.info("parked", scenario=oldest)
        metrics.POLICY_RELOADS.labels(scenario).inc()
        self._note(scenario)
        _log.info("serving", scenario=scenario, release=loaded.release.release_id)
        self._on_change([self._base, *(held.release for held in self._resident.values())])

    def _note(self, scenario: str) -> None:
        held = self._resident.get(scenario)
        if held is not None:
            metrics.POLICY_RELEASE_NUMBER.labels(scenario).set(release_number(held.release.release_id))
            metrics.POLICY_BEHIND.labels(scenario).set(held.release.release_id != self._chains[scenario].serving)
        metrics.POLICY_RESIDENT.set(sum(1 for h in self._resident.values() if h.bytes_held))
