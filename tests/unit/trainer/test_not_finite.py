"""Numbers that are none: on the wire they would be null, which no reader of a release takes, nor the next start."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import pytest

from libs.contracts import Array
from libs.learning.checkpoint import base_digest
from libs.learning.samples import TrainSample
from libs.learning.update import StepResult
from services.trainer import learner as learner_module
from services.trainer.store import Store
from tests.tiny_model import batch, sample, write_model
from tests.unit.trainer.test_handler import make, record, run
from tests.unit.trainer.test_order import events

NONE = [math.nan, math.inf, -math.inf]


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.mark.parametrize("value", NONE)
async def test_an_engines_logprob_that_is_no_number_leaves_the_release_readable(
    tmp_path: Path, model_dir: Path, value: float
) -> None:
    one = sample("f1")
    logprobs = [-1.0] * one.capture.response_token_ids.shape[0]
    logprobs[1] = value
    capture = msgspec.structs.replace(one.capture, logprobs=Array.floats(logprobs))
    event = await run(make(tmp_path, model_dir), batch("b1", msgspec.structs.replace(one, capture=capture)))
    assert event.event == "released"
    assert 0 < event.metrics["drift_mean"] < math.inf
    assert Store(tmp_path, base_digest(model_dir)).get("anna").chain.serving == event.release_id


@pytest.mark.parametrize("value", NONE)
async def test_a_step_that_is_not_finite_ends_in_an_event_that_can_be_read(
    tmp_path: Path, model_dir: Path, monkeypatch: pytest.MonkeyPatch, value: float
) -> None:
    def broken(_policy: object, _optimizer: object, samples: list[TrainSample], *_: object) -> StepResult:
        logp = {s.feedback_id: [value] * len(s.response_ids) for s in samples}
        return StepResult(False, "not_finite_loss", {"loss": value, "grad_norm": 1.0}, logp)

    monkeypatch.setattr(learner_module, "run_step", broken)
    (event,) = events(await make(tmp_path, model_dir).handle(record(batch("b1", sample("f1")))))
    assert (event.event, event.reason, event.metrics) == ("failed", "not_finite_loss", {"grad_norm": 1.0})
    assert Store(tmp_path, base_digest(model_dir)).get("anna").pending == event


async def test_a_fault_that_quotes_half_a_character_ends_in_an_event_too(
    tmp_path: Path, model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> StepResult:
        raise ValueError("\ud83d")

    monkeypatch.setattr(learner_module, "run_step", broken)
    (event,) = events(await make(tmp_path, model_dir).handle(record(batch("b1", sample("f1")))))
    assert (event.event, event.reason) == ("failed", "fault: \ufffd")
