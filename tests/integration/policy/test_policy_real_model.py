"""The real model: what is served under a release is what transformers and peft compute for it, in mixed batches."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.integration.policy.world import CHAT, CLOSE, Publisher, off_by, policy, question
from tests.unit.learning_engine.support import write_adapter

MODEL = Path(os.environ.get("CLAWBACK_HOME", ".clawback")) / "models" / "smollm2-135m-instruct"

pytestmark = [
    pytest.mark.integration,
    pytest.mark.model,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not (MODEL / "config.json").exists(), reason="no converted model: run `make setup`"),
]
QUESTIONS = ["What is the capital of France?", "Explain photosynthesis.", "Name three fruits."]


async def test_two_people_share_a_batch_and_each_gets_their_own_adapter(
    publisher: Publisher, env: dict[str, str], tmp_path: Path
) -> None:
    """Three scenarios (two adapters, one without) ask the same questions at once; every answer is checked."""
    adapters = {
        name: write_adapter(MODEL, tmp_path / name, seed=i, strength=0.06, r=8, lora_alpha=16)
        for i, name in enumerate(("anna", "ben"))
    }
    weights: dict[str, Path | None] = {"base": None}
    for name, adapter in adapters.items():
        weights[await publisher.release(name, adapter)] = Path(adapter.uri)
    with policy(MODEL.resolve(), tmp_path / "log", {**env, "OMP_NUM_THREADS": "2"}) as server:
        async with httpx.AsyncClient(base_url=server.url, timeout=300.0) as http:

            async def ask(scenario: str, text: str) -> tuple[str, dict[str, Any]]:
                headers = {"x-reef-scenario": scenario, "x-clawback-capture": "4"}
                body = question(text, max_tokens=24, temperature=0)
                answer = await http.post(CHAT, json=body, headers=headers)
                assert answer.status_code == 200, answer.text
                return answer.headers["x-clawback-release"], answer.json()

            answers = await asyncio.gather(*(ask(s, q) for q in QUESTIONS for s in ("anna", "ben", "nobody")))
        assert server.metric("clawback_policy_step_seconds_count") < 24 * len(answers) / 3, "they ran as one batch"
    assert {release for release, _ in answers} == set(weights)
    for release, body in answers:
        assert off_by(MODEL, body, weights[release]) < CLOSE
        for other in set(weights) - {release}:
            assert off_by(MODEL, body, weights[other]) > 100 * CLOSE, "strong enough to tell a mix-up"
