"""The trainer against the stored examples: it reads every batch, and what it writes is of the topic's form."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from libs.contracts import PolicyRelease, TrainingBatch, decode, encode
from libs.contracts.release_chain import Chain, fold
from libs.learning.offline import read_batches
from libs.streams.types import StreamRecord
from services.trainer.decode import chat_messages, train_sample
from services.trainer.handler import TrainerHandler
from tests.tiny_model import batch, sample, tokenizer, write_model
from tests.unit.trainer.test_handler import make

EXAMPLES = Path(__file__).parents[2] / "libs/contracts/examples"
BATCHES = sorted((EXAMPLES / "training.batches/v1").glob("*.json"))
EVENTS = sorted((EXAMPLES / "policy.releases/v1").glob("*.json"))


@pytest.mark.parametrize("path", BATCHES, ids=lambda p: p.stem)
def test_every_stored_batch_becomes_samples(path: Path) -> None:
    stored = decode(path.read_bytes(), TrainingBatch)
    for record in stored.samples:
        made = train_sample(record, tokenizer())
        assert made.response_ids == tuple(record.capture.response_token_ids.values())
        assert made.topk_ids.shape == tuple(record.capture.topk_ids.shape)
        assert len(made.hint_prompts) == len(record.hints)
        text = tokenizer().decode(made.hint_prompts[0]) if record.hints else ""
        assert all(hint in text for hint in record.hints[:1])


@pytest.mark.parametrize("path", EVENTS, ids=lambda p: p.stem)
def test_every_stored_event_folds(path: Path) -> None:
    event = decode(path.read_bytes(), PolicyRelease)
    chain = fold(Chain(scenario=event.scenario), event)
    assert (event.release_id in chain.releases) is (event.weights is not None)


@pytest.mark.parametrize("kind", ["judged", "batches"])
def test_the_offline_form_reads_both_topics(tmp_path: Path, kind: str) -> None:
    folder = EXAMPLES / ("turns.judged/v1" if kind == "judged" else "training.batches/v1")
    lines = [msgspec.json.encode(msgspec.json.decode(p.read_bytes())) for p in sorted(folder.glob("*.json"))]
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"\n".join(lines))
    made = list(read_batches([path], batch_size=2))
    assert made and all(b.samples for b in made)
    assert all(len({s.feedback_id for s in b.samples}) == len(b.samples) for b in made)


def test_the_offline_form_names_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text('\n{"version": 1, "samples": 3}\n')
    with pytest.raises(Exception, match=r"in\.jsonl:2: .*TrainingBatch"):
        list(read_batches([path], batch_size=2))


@pytest.fixture(scope="module")
def handler(tmp_path_factory: pytest.TempPathFactory) -> TrainerHandler:
    return make(tmp_path_factory.mktemp("home"), write_model(tmp_path_factory.mktemp("model")))


@pytest.mark.parametrize(("name", "kind"), [("released", "f1"), ("skipped", "accepted")], ids=["released", "skipped"])
async def test_what_the_trainer_writes_has_the_examples_fields(handler: TrainerHandler, name: str, kind: str) -> None:
    judged = sample("f1") if kind == "f1" else sample("f2", reward=1.0, hints=())
    made = batch(f"{kind}-00000000", judged)
    done = await handler.handle(StreamRecord("training.batches", 0, 0, b"anna", encode(made)))
    assert done.finalize is not None
    await done.finalize()
    written = msgspec.json.decode(done.outputs[0].value)
    stored = msgspec.json.decode((EXAMPLES / f"policy.releases/v1/{name}.json").read_bytes())
    assert written["event"] == name and done.outputs[0].key == "anna"
    assert written.keys() == stored.keys()
    assert {k: type(v) for k, v in written.items() if k not in ("parent_id", "weights")} == {
        k: type(v) for k, v in stored.items() if k not in ("parent_id", "weights")
    }


def test_messages_of_every_dialect_reach_the_template() -> None:
    said = [m["content"] for m in chat_messages("/v1/messages", {"system": "Be kind.", "messages": [
        {"role": "user", "content": [{"type": "text", "text": "Hello"}]}]})]  # fmt: skip
    assert said == ["Be kind.", "Hello"]
    answers = chat_messages("/v1/responses", {"instructions": "Be kind.", "input": "Hello"})
    assert [(m["role"], m["content"]) for m in answers] == [("system", "Be kind."), ("user", "Hello")]
