"""The trainer's handler without a broker: one event per batch, whatever happens to it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import msgspec
import pytest
import torch

from libs.contracts import Adapter, DeadLetter, PolicyRelease, Tombstone, TrainingBatch, decode, encode
from libs.contracts.release_chain import folded, promote, rollback
from libs.errors import RetryError
from libs.learning.checkpoint import base_digest, digest, load_release
from libs.learning.model import ModelConfig, load_policy
from libs.learning.objective import ObjectiveConfig
from libs.learning.update import StepConfig
from libs.streams.forgotten import Forgotten
from libs.streams.types import Done, StreamRecord
from services.trainer.handler import TrainerHandler
from services.trainer.learner import Learner, LearnerOptions
from services.trainer.store import Store
from tests.tiny_model import batch, sample, write_model

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"))


def make(home: Path, model_dir: Path, **options: object) -> TrainerHandler:
    policy, tok = load_policy(ModelConfig(path=model_dir, lora_rank=4, lora_alpha=8))
    store = Store(home, base_digest(model_dir))
    defaults = {"max_loaded": 2, **options}
    learner = Learner(
        policy,
        tok,
        store,
        ObjectiveConfig(),
        StepConfig(learning_rate=1e-2),
        LearnerOptions(**defaults),  # type: ignore[arg-type]
        clock=lambda: 9.0,
    )
    return TrainerHandler(learner, store)


def record(b: TrainingBatch, offset: int = 0, partition: int = 0) -> StreamRecord:
    return StreamRecord("training.batches", partition, offset, b.scenario.encode(), encode(b))


def command(event: PolicyRelease, offset: int = 0) -> StreamRecord:
    return StreamRecord("policy.releases", 0, offset, event.scenario.encode(), encode(event))


def events(done: Done) -> list[PolicyRelease]:
    return [decode(o.value, PolicyRelease) for o in done.outputs if o.topic == "policy.releases"]


async def run(handler: TrainerHandler, b: TrainingBatch, offset: int = 0) -> PolicyRelease:
    done = await handler.handle(record(b, offset))
    (event,) = events(done)
    assert done.finalize is not None
    await done.finalize()
    return event


async def test_a_step_makes_a_release_that_peft_can_load(tmp_path: Path, model_dir: Path) -> None:
    event = await run(make(tmp_path, model_dir), batch("b" * 16, sample("f1"), sample("f2", reply="* a\n* b")))
    assert (event.event, event.serving, event.parent_id) == ("released", event.release_id, "base")
    assert event.release_id == "anna@00001-bbbbbbbb"
    assert event.trained == ["f1", "f2"]
    assert event.weights is not None
    directory = Path(event.weights.uri)
    assert digest(directory / "adapter_model.safetensors") == event.weights.digest
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(model_dir)
    served = PeftModel.from_pretrained(base, str(directory))
    policy, _ = load_policy(ModelConfig(path=model_dir, lora_rank=4, lora_alpha=8))
    load_release(policy, torch.optim.AdamW(policy.named_trainable().values()), event.weights)
    ids = torch.arange(20).unsqueeze(0)
    with torch.no_grad():
        ours = policy.causal(ids).logits
        theirs = served(ids).logits
        with served.disable_adapter():
            assert not torch.allclose(theirs, served(ids).logits, atol=1e-4)
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


async def test_nothing_rejected_moves_nothing(tmp_path: Path, model_dir: Path) -> None:
    event = await run(make(tmp_path, model_dir), batch("b1", sample("f1", reward=1.0, hints=())))
    assert (event.event, event.reason, event.serving) == ("skipped", "nothing_rejected", "base")
    assert not list((tmp_path / "checkpoints" / "anna").glob("*@*"))


async def test_a_hint_without_a_verdict_counts_as_rejected(tmp_path: Path, model_dir: Path) -> None:
    event = await run(make(tmp_path, model_dir), batch("b1", sample("f1", reward=0.0)))
    assert event.event == "released"


async def test_repeated_and_stale_and_broken_samples_are_named(tmp_path: Path, model_dir: Path) -> None:
    handler = make(tmp_path, model_dir, max_staleness=1)
    await run(handler, batch("b1", sample("f1")), 0)
    await run(handler, batch("b2", sample("f2")), 1)
    late = batch(
        "b3",
        sample("f1"),
        sample("f3"),
        sample("f4", path="/v1/embeddings", release_id="anna@00002-b2"),
        sample("f5", prompt="x" * 600, release_id="anna@00002-b2"),
        sample("f6", release_id="anna@00007-bbbbbbbb"),
        sample("f7", release_id="anna@00001-b1"),
    )
    event = await run(handler, late, 2)
    assert event.dropped == {
        "f1": "repeated",
        "f3": "stale",
        "f4": "unknown_path",
        "f5": "too_long",
        "f6": "other_branch",
    }
    assert event.trained == ["f7"]


async def test_a_batch_delivered_again_gives_no_second_event(tmp_path: Path, model_dir: Path) -> None:
    handler = make(tmp_path, model_dir)
    b = batch("b1", sample("f1"))
    await run(handler, b)
    before = digest(tmp_path / "checkpoints" / "anna" / "state.json")
    done = await handler.handle(record(b))
    assert done.outputs == ()
    assert digest(tmp_path / "checkpoints" / "anna" / "state.json") == before


async def test_a_crash_before_publishing_publishes_the_same_event(tmp_path: Path, model_dir: Path) -> None:
    b = batch("b1", sample("f1"))
    (event,) = events(await make(tmp_path, model_dir).handle(record(b, 7)))  # finalize never ran: killed here
    restarted = make(tmp_path, model_dir)
    position = await restarted.start_positions([("training.batches", 0)])
    assert position.offsets == {("training.batches", 0): 7}
    announced = await restarted.tick()
    assert announced is not None and events(announced) == [event]
    done = await restarted.handle(record(b, 7))
    assert events(done) == [event]
    for out in (announced, done):
        assert out.finalize is not None
        await out.finalize()
    assert await restarted.tick() is None
    assert (await make(tmp_path, model_dir).start_positions([("training.batches", 0)])).offsets == {
        ("training.batches", 0): 8
    }


async def test_training_goes_on_after_a_restart_as_without_one(tmp_path: Path, model_dir: Path) -> None:
    batches = [batch(f"b{i}", sample(f"f{i}", seed=i, reply=f"- {i}\n- x")) for i in range(3)]
    straight = make(tmp_path / "a", model_dir)
    for i, b in enumerate(batches):
        last = await run(straight, b, i)
    for i, b in enumerate(batches):
        again = await run(make(tmp_path / "b", model_dir), b, i)
    assert last.weights is not None and again.weights is not None
    assert last.weights.digest == again.weights.digest
    assert last.metrics == again.metrics


async def test_scenarios_do_not_mix(tmp_path: Path, model_dir: Path) -> None:
    def stream(scenario: str) -> list[TrainingBatch]:
        return [
            batch(f"{scenario}{i}", sample(f"{scenario}{i}", reply=f"{scenario} {i}"), scenario=scenario)
            for i in range(2)
        ]

    names = ["anna", "ben", "cleo"]
    mixed = make(tmp_path / "mixed", model_dir, max_loaded=2)
    digests = {}
    for step in range(2):
        for offset, name in enumerate(names):
            event = await run(mixed, stream(name)[step], step * 3 + offset)
            assert event.weights is not None
            digests[name] = event.weights.digest
    assert len(set(digests.values())) == 3
    for name in names:
        alone = make(tmp_path / name, model_dir)
        for step in range(2):
            event = await run(alone, stream(name)[step], step)
        assert event.weights is not None and event.weights.digest == digests[name]


async def test_rollback_goes_on_from_the_older_release(tmp_path: Path, model_dir: Path) -> None:
    handler = make(tmp_path, model_dir)
    first = await run(handler, batch("b1", sample("f1")), 0)
    second = await run(handler, batch("b2", sample("f2", release_id=first.release_id)), 1)
    store = handler._store
    back = rollback(store.get("anna").chain, None, now=10.0)
    assert (back.serving, back.weights) == (first.release_id, first.weights)
    await handler.handle(command(back))
    assert store.get("anna").chain.serving == first.release_id
    third = await run(handler, batch("b3", sample("f3", release_id=first.release_id)), 2)
    assert (third.parent_id, third.step) == (first.release_id, 2)
    assert third.release_id.startswith("anna@00003") and second.release_id.startswith("anna@00002")
    await handler.handle(command(back))  # delivered again: applies once
    assert Store(tmp_path, base_digest(model_dir)).get("anna").chain.serving == third.release_id


async def test_rollback_to_the_base_and_promote_of_what_is_not_held(tmp_path: Path, model_dir: Path) -> None:
    handler = make(tmp_path, model_dir)
    first = await run(handler, batch("b1", sample("f1")), 0)
    chain = handler._store.get("anna").chain
    back = rollback(chain, "base", now=10.0)
    assert back.weights is None
    await handler.handle(command(back))
    chain = handler._store.get("anna").chain
    assert (chain.serving, chain.step) == ("base", 0)
    with pytest.raises(Exception, match="not a held release"):
        promote(chain, first.release_id, now=11.0)


async def test_old_releases_go_and_a_rollback_to_one_is_refused_in_the_log(tmp_path: Path, model_dir: Path) -> None:
    handler = make(tmp_path, model_dir, keep_releases=2)
    made = []
    for i in range(4):
        serving = made[-1].release_id if made else "base"
        made.append(await run(handler, batch(f"b{i}", sample(f"f{i}", release_id=serving)), i))
    assert sorted(p.name for p in (tmp_path / "checkpoints" / "anna").glob("anna*")) == [e.release_id for e in made[2:]]
    store = handler._store
    full = store.get("anna").chain
    assert list(full.releases) == [e.release_id for e in made[2:]]
    assert full.staleness(made[2].release_id) == 1
    gone = folded("anna", made)
    refused = await handler.handle(command(rollback(gone, made[0].release_id, now=20.0)))
    (answer,) = events(refused)
    assert (answer.serving, answer.weights) == (made[3].release_id, made[3].weights)
    assert "no longer kept" in answer.reason
    await handler.handle(command(answer, 1))
    assert store.get("anna").chain.serving == made[3].release_id


async def test_a_broken_batch_ends_in_an_event_and_a_dead_letter_and_the_next_one_trains(
    tmp_path: Path, model_dir: Path
) -> None:
    handler = make(tmp_path, model_dir)
    first = await run(handler, batch("b1", sample("f1")), 0)
    done = await handler.handle(record(batch("b2", sample("f2"), sample("f2")), 1))
    (event,) = events(done)
    assert (event.event, event.serving) == ("failed", first.release_id)
    assert event.reason.startswith("repeated: a batch names one feedback twice")
    letters = [decode(o.value, DeadLetter) for o in done.outputs if o.topic == "dead.letters"]
    assert [(x.reason, x.source_offset) for x in letters] == [("repeated", 1)]
    assert done.finalize is not None
    await done.finalize()
    third = await run(handler, batch("b3", sample("f3", release_id=first.release_id)), 2)
    alone = make(tmp_path / "alone", model_dir)
    await run(alone, batch("b1", sample("f1")), 0)
    same = await run(alone, batch("b3", sample("f3", release_id=first.release_id)), 1)
    assert third.weights is not None and same.weights is not None
    assert third.weights.digest == same.weights.digest


async def test_a_full_disk_is_waited_out(tmp_path: Path, model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    handler = make(tmp_path / "full", model_dir)
    b = batch("b1", sample("f1"))
    real = os.fsync

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RetryError, match="free or repair the disk"):
        await handler.handle(record(b))
    monkeypatch.setattr(os, "fsync", real)
    event = await run(handler, b)
    undisturbed = await run(make(tmp_path / "b", model_dir), b)
    assert event.weights is not None and undisturbed.weights is not None
    assert event.weights.digest == undisturbed.weights.digest


async def test_a_new_log_is_read_from_its_start_and_told_what_serves(tmp_path: Path, model_dir: Path) -> None:
    first = await run(make(tmp_path, model_dir), batch("b1", sample("f1")), 7)
    same = make(tmp_path, model_dir)
    same.on_log({"b1", "other"})
    assert (await same.start_positions([("training.batches", 0)])).offsets == {("training.batches", 0): 8}
    assert await same.tick() is None
    new = make(tmp_path, model_dir)
    new.on_log(set())
    assert (await new.start_positions([("training.batches", 0)])).offsets == {}
    announced = await new.tick()
    assert announced is not None
    (event,) = events(announced)
    assert (event.serving, event.weights, event.batch_id) == (first.serving, first.weights, None)
    second = await run(new, batch("b2", sample("f2", release_id=first.release_id)), 0)
    assert second.parent_id == first.release_id
    again = make(tmp_path, model_dir)
    again.on_log({"b2"})
    assert (await again.start_positions([("training.batches", 0)])).offsets == {("training.batches", 0): 1}


async def test_a_damaged_checkpoint_stops_with_the_path(tmp_path: Path, model_dir: Path) -> None:
    first = await run(make(tmp_path, model_dir), batch("b1", sample("f1")), 0)
    assert isinstance(first.weights, Adapter)
    path = Path(first.weights.uri) / "adapter_model.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(Exception, match="sha256 differs"):
        await run(make(tmp_path, model_dir), batch("b2", sample("f2", release_id=first.release_id)), 1)


async def test_samples_of_who_was_forgotten_reach_no_step(tmp_path: Path, model_dir: Path) -> None:
    handler, forgotten = make(tmp_path, model_dir), Forgotten()
    handler.leave_out(forgotten)
    forgotten.add(Tombstone(kind="tenant", value="ann", at=2e9))
    ann, bob = (msgspec.structs.replace(sample(f), tenant=who) for f, who in (("f1", "ann"), ("f2", "bob")))
    event = await run(handler, batch("b1", ann, bob), 0)
    assert (event.event, event.trained, event.dropped) == ("released", ["f2"], {"f1": "forgotten"})
    alone = await run(handler, batch("b2", msgspec.structs.replace(ann, feedback_id="f3")), 1)
    assert (alone.event, alone.reason, alone.dropped) == ("skipped", "no_samples", {"f3": "forgotten"})
