"""kill -9 at every moment of step, checkpoint and publish: the next start goes on to the same weights and events.

Each case is a forked process that sends itself SIGKILL at its n-th durable moment (an fsync, a rename, the optimizer's
step, a publication), with everything before it done and nothing after it. A second process then finishes the work.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import torch

from libs.contracts import PolicyRelease, TrainingBatch, decode, encode
from libs.learning.checkpoint import base_digest, digest
from libs.learning.model import ModelConfig, load_policy
from libs.learning.objective import ObjectiveConfig
from libs.learning.update import StepConfig
from libs.streams.types import StreamRecord
from services.trainer.handler import TrainerHandler
from services.trainer.learner import Learner, LearnerOptions
from services.trainer.store import Store
from tests.tiny_model import batch, sample, write_model

BATCHES = (
    batch("b1", sample("f1"), sample("f2", reply="* x\n* y")),
    batch("b2", sample("f3", reward=1.0, hints=())),
    batch("b3", sample("f4", reply="1. a\n2. b")),
)


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return write_model(tmp_path_factory.mktemp("model"))


def work(home: Path, model_dir: Path, log: Path) -> None:
    """What the service's loop does: from the checkpoint's position on, produce, finalize, next."""
    policy, tok = load_policy(ModelConfig(path=model_dir, lora_rank=4, lora_alpha=8))
    store = Store(home, base_digest(model_dir))
    options = LearnerOptions(max_staleness=8)
    learner = Learner(policy, tok, store, ObjectiveConfig(), StepConfig(learning_rate=1e-2), options, clock=lambda: 9.0)
    handler = TrainerHandler(learner, store)

    async def run() -> None:
        announced = await handler.tick()
        for output in announced.outputs if announced else ():
            publish(log, output.value)
        if announced is not None and announced.finalize is not None:
            await announced.finalize()
        start = (await handler.start_positions([("training.batches", 0)])).offsets.get(("training.batches", 0), 0)
        for offset in range(start, len(BATCHES)):
            done = await handler.handle(record(BATCHES[offset], offset))
            for output in done.outputs:
                publish(log, output.value)
            assert done.finalize is not None
            await done.finalize()

    asyncio.run(run())


def record(b: TrainingBatch, offset: int) -> StreamRecord:
    return StreamRecord("training.batches", 0, offset, b.scenario.encode(), encode(b))


def publish(log: Path, value: bytes) -> None:
    with log.open("ab") as sink:
        sink.write(value + b"\n")
        sink.flush()
        os.fsync(sink.fileno())


def fork(job: Callable[[], None], die_at: int | None) -> tuple[int, bool]:
    """Run `job` in a forked process. Returns (moments seen up to the end, whether it was killed)."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            moments = 0

            def moment() -> None:
                nonlocal moments
                moments += 1
                if moments == die_at:
                    os.kill(os.getpid(), signal.SIGKILL)

            real_fsync, real_rename, real_step = os.fsync, Path.rename, torch.optim.AdamW.step

            def fsync(handle: int) -> None:
                moment()
                real_fsync(handle)

            def rename(self: Path, target: Path) -> Path:
                moment()
                return real_rename(self, target)

            def step(self: torch.optim.AdamW) -> None:  # type: ignore[type-arg]
                moment()
                real_step(self)
                moment()

            os.fsync, Path.rename, torch.optim.AdamW.step = fsync, rename, step  # type: ignore
            job()
            os.write(write, str(moments).encode())
            status = 0
        finally:
            os._exit(status)
    os.close(write)
    _, state = os.waitpid(child, 0)
    seen = os.read(read, 100)
    os.close(read)
    killed = os.WIFSIGNALED(state) and os.WTERMSIG(state) == signal.SIGKILL
    assert killed or os.WEXITSTATUS(state) == 0, "the process failed by itself"
    return int(seen or b"0"), killed


def outcome(home: Path, log: Path, model_dir: Path) -> tuple[dict[str, PolicyRelease], str, list[str]]:
    """The event of each batch, the digest of the serving weights, and the trained feedback ids."""
    events: dict[str, PolicyRelease] = {}
    for line in log.read_bytes().splitlines():
        event = decode(line, PolicyRelease)
        assert event.batch_id is not None
        event = relative(event, home)
        assert events.setdefault(event.batch_id, event) == event, "two different events for one batch"
    state = Store(home, base_digest(model_dir)).get("anna")
    assert state.pending is None
    assert state.positions == {"training.batches-0": len(BATCHES)}
    weights = state.chain.releases[state.chain.serving].weights
    assert digest(Path(weights.uri) / "adapter_model.safetensors") == weights.digest
    return events, weights.digest, state.trained


def relative(event: PolicyRelease, home: Path) -> PolicyRelease:
    """The event without the test's own directory."""
    if event.weights is None:
        return event
    uri = event.weights.uri.removeprefix(str(home))
    return msgspec.structs.replace(event, weights=msgspec.structs.replace(event.weights, uri=uri))


def test_every_moment(tmp_path: Path, model_dir: Path) -> None:
    whole = tmp_path / "whole"
    moments, killed = fork(lambda: work(whole, model_dir, tmp_path / "whole.log"), None)
    assert not killed and moments > 30
    want = outcome(whole, tmp_path / "whole.log", model_dir)
    assert [e.event for e in want[0].values()] == ["released", "skipped", "released"]
    assert want[2] == ["f1", "f2", "f4"]
    for n in range(1, moments + 1):
        home, log = tmp_path / str(n), tmp_path / f"{n}.log"
        _, killed = fork(lambda home=home, log=log: work(home, model_dir, log), n)  # type: ignore[misc]
        assert killed
        _, killed = fork(lambda home=home, log=log: work(home, model_dir, log), None)  # type: ignore[misc]
        assert not killed
        assert outcome(home, log, model_dir) == want, f"killed at moment {n}"
