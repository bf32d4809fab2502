"""The release chain as a fold over the log."""

from __future__ import annotations

import msgspec
import pytest

from libs.contracts import Adapter, PolicyRelease
from libs.contracts.release_chain import Chain, fold, promote, rollback
from libs.errors import DeadLetterError


def event(kind: str, number: int, parent: str, *, serving: str | None = None, step: int = 0) -> PolicyRelease:
    name = f"a@{number:05d}-x"
    return PolicyRelease(
        event=kind,  # type: ignore[arg-type]
        release_id=name,
        parent_id=parent,
        serving=serving or name,
        scenario="a",
        step=step or number,
        number=number,
        batch_id=f"b{number}",
        trained=[],
        dropped={},
        weights=Adapter(kind="lora", uri=f"/{name}", digest="d"),
        metrics={},
        created_at=float(number),
    )


def chain_of(*log: PolicyRelease) -> Chain:
    chain = Chain(scenario="a")
    for e in log:
        chain = fold(chain, e)
    return chain


ONE, TWO, THREE = "a@00001-x", "a@00002-x", "a@00003-x"
LOG = (event("released", 1, "base"), event("released", 2, ONE))


def test_serving_lineage_and_staleness() -> None:
    chain = chain_of(*LOG)
    assert (chain.serving, chain.step, chain.number) == (TWO, 2, 2)
    assert chain.lineage() == [TWO, ONE, "base"]
    assert [chain.staleness(i) for i in (TWO, ONE, "base", "vllm-3", "a@00009-x")] == [0, 1, 2, 2, None]


def test_events_apply_once_and_skipped_ones_change_nothing() -> None:
    chain = chain_of(*LOG)
    for again in LOG:
        assert fold(chain, again) == chain
    assert fold(chain, event("skipped", 3, TWO, serving=TWO)) == chain
    assert fold(chain, event("failed", 3, TWO, serving=TWO)) == chain


def test_a_held_release_does_not_serve_until_it_is_promoted() -> None:
    chain = chain_of(*LOG, event("held", 3, TWO, serving=TWO))
    assert (chain.serving, chain.number, chain.step) == (TWO, 3, 2)
    with pytest.raises(DeadLetterError, match="use promote"):
        rollback(chain, THREE, 9.0)
    after = fold(chain, promote(chain, THREE, 9.0))
    assert (after.serving, after.step, after.releases[THREE].status) == (THREE, 3, "released")
    assert after.lineage() == [THREE, TWO, ONE, "base"]
    with pytest.raises(DeadLetterError, match="held: none is held"):
        promote(after, THREE, 9.0)


def test_rollback_goes_one_back_or_to_the_named_one() -> None:
    chain = chain_of(*LOG)
    assert rollback(chain, None, 9.0).serving == ONE
    back = fold(chain, rollback(chain, "base", 9.0))
    assert (back.serving, back.step, back.lineage()) == ("base", 0, ["base"])
    with pytest.raises(DeadLetterError, match="nothing to roll back to"):
        rollback(back, None, 9.0)
    with pytest.raises(DeadLetterError, match=f"choose one of base, {ONE}, {TWO}"):
        rollback(chain, "a@00042-x", 9.0)


def test_after_a_rollback_a_sample_of_the_left_branch_is_none_of_its_lineage() -> None:
    chain = fold(chain_of(*LOG), rollback(chain_of(*LOG), ONE, 9.0))
    chain = fold(chain, event("released", 3, ONE))
    assert chain.lineage() == [THREE, ONE, "base"]
    assert (chain.staleness(TWO), chain.staleness(ONE)) == (None, 1)


def test_the_base_and_pruned_releases_keep_their_distance() -> None:
    """The trainer keeps the newest releases only; what was served before them is older, not of another branch."""
    whole = chain_of(*(event("released", n, f"a@{n - 1:05d}-x" if n > 1 else "base") for n in range(1, 6)))
    kept = {i: r for i, r in whole.releases.items() if r.number >= 4}
    pruned = msgspec.structs.replace(whole, releases=kept)
    for known in ("base", "engine-of-its-own", ONE, TWO, THREE, "a@00004-x", "a@00005-x"):
        assert pruned.staleness(known) == whole.staleness(known), known
    assert pruned.staleness("a@00007-x") is None
