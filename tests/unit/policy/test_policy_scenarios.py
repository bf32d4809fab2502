"""Which release serves which scenario: swaps, refusals, parking, fall-backs - with real adapters."""

from __future__ import annotations

import asyncio
import shutil
from functools import partial
from pathlib import Path

import pytest

from libs.contracts import Adapter, PolicyRelease
from libs.contracts.release_chain import Chain, fold
from libs.learning.engine.decoder import Decoder
from libs.learning.engine.sequence import Release
from libs.learning.engine.weights import load_weights
from libs.telemetry import metrics
from services.policy.scenarios import Held, Scenarios
from services.policy.server import load_weights_of
from tests.unit.learning_engine.support import write_adapter


@pytest.fixture(scope="module")
def base(policy_model: Path) -> Release:
    return Release("base", Decoder(load_weights(policy_model)))


@pytest.fixture(scope="module")
def adapter(policy_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Adapter:
    return write_adapter(policy_model, tmp_path_factory.mktemp("adapter"), seed=0)


class Disk:
    """Loads from disk and notes what was asked for."""

    def __init__(self, base: Release) -> None:
        self._load = partial(load_weights_of, base.decoder)
        self.loaded: list[str] = []

    async def __call__(self, release_id: str, adapter: Adapter) -> Held[Release]:
        self.loaded.append(release_id)
        return await self._load(release_id, adapter)


def chain_of(scenario: str, *steps: tuple[str, Adapter]) -> Chain:
    """A chain in which each release follows the one before and the last one serves."""
    chain = Chain(scenario=scenario)
    for number, (release_id, weights) in enumerate(steps, 1):
        chain = fold(chain, event(scenario, release_id, number, chain.serving, weights))
    return chain


def event(scenario: str, release_id: str, number: int, parent: str, weights: Adapter) -> PolicyRelease:
    return PolicyRelease(
        event="released", release_id=release_id, parent_id=parent, serving=release_id, scenario=scenario, step=number,
        number=number, batch_id=release_id, trained=[], dropped={}, weights=weights, metrics={}, created_at=number,
    )  # fmt: skip


def bad(adapter: Adapter) -> Adapter:
    return Adapter(kind=adapter.kind, uri=adapter.uri, digest="0" * 64)


def refusals(scenario: str) -> float:
    return sum(
        s.value for m in metrics.POLICY_REFUSED.collect() for s in m.samples
        if s.name.endswith("_total") and s.labels["scenario"] == scenario
    )  # fmt: skip


async def test_unknown_scenarios_get_the_base(base: Release) -> None:
    scenarios = Scenarios(base, Disk(base), budget_bytes=10**9)
    assert await scenarios.acquire("nobody") is base
    assert scenarios.serving() == {}, "asking leaves no trace: names from clients cannot fill memory"


async def test_a_release_serves_its_scenario_only(base: Release, adapter: Adapter) -> None:
    scenarios = Scenarios(base, Disk(base), budget_bytes=10**9)
    assert await scenarios.update("anna", chain_of("anna", ("r1", adapter)))
    assert (await scenarios.acquire("anna")).release_id == "r1"
    assert await scenarios.acquire("ben") is base


async def test_a_refused_release_leaves_the_former_in_place_and_is_counted(base: Release, adapter: Adapter) -> None:
    disk = Disk(base)
    scenarios = Scenarios(base, disk, budget_bytes=10**9)
    await scenarios.update("refusing", chain_of("refusing", ("r1", adapter)))
    before = refusals("refusing")
    assert not await scenarios.update("refusing", chain_of("refusing", ("r1", adapter), ("r2", bad(adapter))))
    assert (await scenarios.acquire("refusing")).release_id == "r1"
    assert disk.loaded == ["r1", "r2"], "the former stays as it is, it is not read again"
    assert refusals("refusing") == before + 1
    assert scenarios.behind() == ["refusing"]


async def test_an_unforeseen_error_while_loading_is_a_refusal_too(base: Release, adapter: Adapter) -> None:
    disk = Disk(base)

    async def load(release_id: str, weights: Adapter) -> Held[Release]:
        if release_id == "r2":
            raise MemoryError
        return await disk(release_id, weights)

    scenarios = Scenarios(base, load, budget_bytes=10**9)
    await scenarios.update("full", chain_of("full", ("r1", adapter)))
    before = refusals("full")
    assert not await scenarios.update("full", chain_of("full", ("r1", adapter), ("r2", adapter)))
    assert (await scenarios.acquire("full")).release_id == "r1"
    assert refusals("full") == before + 1


async def test_names_that_only_clients_know_share_one_metric_label(base: Release, adapter: Adapter) -> None:
    scenarios = Scenarios(base, Disk(base), budget_bytes=10**9)
    await scenarios.update("anna", chain_of("anna", ("r1", adapter)), load=False)
    assert [scenarios.label(name) for name in ("anna", "default", "x1", "x2")] == ["anna", "default", "other", "other"]


async def test_a_refused_release_serves_once_its_files_are_right(
    base: Release, policy_model: Path, tmp_path: Path, adapter: Adapter
) -> None:
    late = write_adapter(policy_model, tmp_path / "late", seed=1)
    shutil.move(tmp_path / "late", tmp_path / "elsewhere")
    scenarios = Scenarios(base, Disk(base), budget_bytes=10**9)
    chain = chain_of("s", ("r1", adapter), ("r2", late))
    await scenarios.update("s", chain_of("s", ("r1", adapter)))
    assert not await scenarios.update("s", chain)
    shutil.move(tmp_path / "elsewhere", tmp_path / "late")
    assert await scenarios.update("s", chain)
    assert scenarios.behind() == []


async def test_after_a_restart_a_broken_release_gives_way_to_its_nearest_good_ancestor(
    base: Release, adapter: Adapter
) -> None:
    scenarios = Scenarios(base, Disk(base), budget_bytes=10**9)
    chain = chain_of("s", ("r1", adapter), ("r2", bad(adapter)), ("r3", bad(adapter)))
    assert not await scenarios.update("s", chain)
    assert (await scenarios.acquire("s")).release_id == "r1"
    await scenarios.update("t", chain_of("t", ("r1", bad(adapter))))
    assert (await scenarios.acquire("t")).release_id == "base"


async def test_a_rollback_to_the_base_needs_no_files(base: Release, adapter: Adapter) -> None:
    scenarios = Scenarios(base, Disk(base), budget_bytes=10**9)
    await scenarios.update("s", chain_of("s", ("r1", adapter)))
    assert await scenarios.update("s", Chain(scenario="s"))
    assert await scenarios.acquire("s") is base


async def test_least_recently_used_releases_are_parked_and_come_back_when_asked_for(
    base: Release, adapter: Adapter
) -> None:
    disk = Disk(base)
    size = (await disk("probe", adapter)).bytes_held
    disk.loaded.clear()
    scenarios = Scenarios(base, disk, budget_bytes=2 * size)
    for name in ("a", "b"):
        await scenarios.update(name, chain_of(name, (f"{name}1", adapter)))
    await scenarios.acquire("a")
    await scenarios.update("c", chain_of("c", ("c1", adapter)))
    assert disk.loaded == ["a1", "b1", "c1"]
    assert (await scenarios.acquire("a")).release_id == "a1"
    assert disk.loaded == ["a1", "b1", "c1"], "a was used more recently than b: b was parked"
    assert (await scenarios.acquire("b")).release_id == "b1"
    assert disk.loaded[-1] == "b1"
    assert scenarios.serving() == {"a": "a1", "b": "b1", "c": "c1"}, "parked or not, the answer is the same"


async def test_many_requests_for_a_parked_release_read_it_once(base: Release, adapter: Adapter) -> None:
    disk = Disk(base)
    scenarios = Scenarios(base, disk, budget_bytes=10**9)
    await scenarios.update("s", chain_of("s", ("r1", adapter)), load=False)
    assert disk.loaded == []
    releases = await asyncio.gather(*(scenarios.acquire("s") for _ in range(5)))
    assert disk.loaded == ["r1"]
    assert len({id(r) for r in releases}) == 1


async def test_requests_during_a_swap_get_the_former_at_once(base: Release, adapter: Adapter) -> None:
    scenarios = Scenarios(base, Disk(base), budget_bytes=10**9)
    await scenarios.update("s", chain_of("s", ("r1", adapter)))
    swap = asyncio.create_task(scenarios.update("s", chain_of("s", ("r1", adapter), ("r2", adapter))))
    await asyncio.sleep(0)
    assert (await scenarios.acquire("s")).release_id == "r1"
    await swap
    assert (await scenarios.acquire("s")).release_id == "r2"
