"""Two ranks under torchrun and FSDP2 (gloo) take the same steps as one, LoRA and full."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from libs.contracts import encode
from tests.tiny_model import batch, sample, write_model

ROOT = Path(__file__).parents[3]


def train(ranks: int, mode: str, model: Path, data: Path, out: Path) -> list[dict[str, float]]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    command += ["-m", "libs.learning", str(data), "--model", str(model), "--out", str(out), "--mode", mode]
    command += ["--lora-rank", "4", "--learning-rate", "5e-3", "--anchor-coef", "0.5", "--pack-tokens", "120"]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    run = subprocess.run(command, capture_output=True, text=True, cwd=out.parent, env=env, timeout=280)
    assert run.returncode == 0, run.stderr[-3000:]
    return [json.loads(line)["metrics"] for line in run.stdout.splitlines() if line.startswith("{")]


@pytest.mark.integration
@pytest.mark.timeout(600)
@pytest.mark.parametrize("mode", ["lora", "full"])
def test_two_ranks_take_the_same_steps_as_one(tmp_path: Path, mode: str) -> None:
    model = write_model(tmp_path / "model")
    data = tmp_path / "batches.jsonl"
    batches = [
        batch("b1", sample("f1"), sample("f2", reply="* a\n* b", hints=("Be brief.", "Write prose."))),
        batch("b2", sample("f3", prompt="Hello there."), sample("f4", reward=1.0, hints=()), sample("f5", seed=4)),
        batch("b3", sample("f6", reply="one")),  # fewer samples than ranks
    ]
    data.write_bytes(b"\n".join(encode(b) for b in batches))
    one = train(1, mode, model, data, tmp_path / "one")
    two = train(2, mode, model, data, tmp_path / "two")
    assert len(one) == len(two) == 3
    for a, b in zip(one, two, strict=True):
        for name in ("loss", "loss_rl", "loss_opd", "loss_kl", "grad_norm", "entropy"):
            assert b[name] == pytest.approx(a[name], rel=2e-4, abs=1e-6), name
    files = sorted(p.relative_to(tmp_path / "one") for p in (tmp_path / "one").rglob("*.safetensors"))
    assert len(files) == 2
    for name in files:
        left, right = load_file(tmp_path / "one" / name), load_file(tmp_path / "two" / name)
        assert left.keys() == right.keys()
        for key in left:
            torch.testing.assert_close(
                left[key], right[key], atol=2e-4, rtol=2e-2, msg=lambda m, key=key: f"{key}: {m}"
            )
