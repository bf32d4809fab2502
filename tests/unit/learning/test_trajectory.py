"""A pinned short run: any change to the objective, the packing or the optimizer shows here first."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from libs.learning.model import ModelConfig, load_policy
from libs.learning.objective import ObjectiveConfig
from libs.learning.update import StepConfig, run_step
from tests.tiny_model import write_model
from tests.unit.learning.test_update import BATCH

LOSSES: dict[str, list[float]] = {
    "lora": [0.5776072144508362, 0.5470899939537048, 0.531110405921936, 0.5148153305053711, 0.4968526363372803],
    "full": [0.5776072144508362, 0.4759969711303711, 0.4200245440006256, 0.4309273958206177, 0.33649444580078125],
}


@pytest.mark.parametrize("mode", ["lora", "full"])
def test_five_seeded_steps_give_the_pinned_losses(tmp_path: Path, mode: str) -> None:
    torch.set_num_threads(1)
    policy, _ = load_policy(
        ModelConfig(path=write_model(tmp_path), mode=mode, lora_rank=4, lora_alpha=8)  # type: ignore[arg-type]
    )
    optimizer = torch.optim.AdamW(policy.named_trainable().values(), lr=5e-3, weight_decay=0.0)
    losses = [run_step(policy, optimizer, BATCH, ObjectiveConfig(), StepConfig()).metrics["loss"] for _ in range(5)]
    assert losses == pytest.approx(LOSSES[mode], rel=1e-3)  # float32 sums differ a little between processors
