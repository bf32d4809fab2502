"""A chain told again to a new log folds to the same chain: what serves, what is held, what a rollback can reach."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from libs.contracts import BASE_RELEASE, Adapter, PolicyRelease
from libs.contracts.policy_releases import Event, release_id_for
from libs.contracts.release_chain import Chain, fold, promote, rollback
from libs.telemetry.ledger import Ledger
from services.trainer.announce import announcements, refusal
from services.trainer.store import ScenarioState, after_command, prune


def made(chain: Chain, event: Event) -> PolicyRelease:
    number = chain.number + 1
    release_id = release_id_for("s", number, f"batch-{number:03d}")
    return PolicyRelease(
        event=event, release_id=release_id, parent_id=chain.serving,
        serving=release_id if event == "released" else chain.serving, scenario="s", step=chain.step + 1, number=number,
        batch_id=f"batch-{number:03d}", trained=["f"], dropped={}, reason="" if event == "released" else "gate_endless",
        weights=Adapter(kind="lora", uri=f"/w/{number}", digest="d"), metrics={"loss": 0.1 * number},
        created_at=float(number),
    )  # fmt: skip


def build(moves: list[str]) -> Chain:
    chain = Chain(scenario="s")
    for move in moves:
        if move in ("released", "held"):
            chain = fold(chain, made(chain, move))  # type: ignore[arg-type]
        elif move == "rollback" and chain.serving != BASE_RELEASE:
            chain = fold(chain, rollback(chain, None, 100.0))
        elif move == "promote" and (held := [i for i, r in chain.releases.items() if r.status == "held"]):
            chain = fold(chain, promote(chain, held[0], 100.0))
    return chain


MOVES = st.lists(st.sampled_from(["released", "held", "rollback", "promote"]), max_size=12)


@given(MOVES, st.sampled_from([2, 3, 50]))
def test_folding_what_is_announced_gives_the_chain(moves: list[str], keep: int) -> None:
    chain = prune(ScenarioState(chain=build(moves), base_digest="d"), keep)[0].chain
    told, monitor = Chain(scenario="s"), Ledger()
    for event in announcements(chain):
        told = fold(told, event)
        monitor.observe(event)
        assert told.serving in told.releases or told.serving == BASE_RELEASE  # never one without weights
    assert not chain.releases or monitor.scenarios["s"].serving == chain.serving  # it goes by time, not by order
    without_reasons = {i: msgspec.structs.replace(r, reason="", batch_id="") for i, r in chain.releases.items()}
    told_releases = {i: msgspec.structs.replace(r, reason="", batch_id="") for i, r in told.releases.items()}
    assert (told.serving, told_releases) == (chain.serving, without_reasons)
    assert told.lineage()[:2] == chain.lineage()[:2]
    held = {r.release_id: r.reason for r in told.releases.values() if r.status == "held"}
    assert set(held.values()) <= {"gate_endless"}  # why it was held is still said


@given(MOVES)
def test_the_trainer_that_reads_its_own_announcements_changes_nothing(moves: list[str]) -> None:
    state = ScenarioState(chain=build(moves), base_digest="d")
    for event in announcements(state.chain):
        if event.event in ("rolled_back", "promoted"):
            assert after_command(state, event).chain == state.chain


def test_nothing_is_announced_of_an_empty_chain() -> None:
    assert announcements(Chain(scenario="s")) == []


def test_a_refused_command_names_what_serves() -> None:
    chain = build(["released", "released"])
    command = msgspec.structs.replace(rollback(chain, None, 7.0), serving="s@00009-gone")
    event = refusal(chain, command)
    assert (event.serving, event.weights, event.created_at) == (
        chain.serving,
        chain.releases[chain.serving].weights,
        7.0,
    )
    assert "s@00009-gone" in event.reason
