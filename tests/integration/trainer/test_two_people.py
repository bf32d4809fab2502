"""Two people of opposite taste on one trainer and one base model, with the real model: both get theirs.

Anna rejects every list, Ben every reply without one. They ask the same questions, in turn, and neither says up front
what they want. Replies are sampled by the serving engine from each one's own release.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from libs.contracts import Array, Capture, PolicyRelease, Sample, TrainingBatch
from libs.learning.checkpoint import base_digest
from libs.learning.engine.chat import ChatTokenizer
from libs.learning.engine.decoder import Decoder
from libs.learning.engine.engine import Engine, Limits
from libs.learning.engine.release import load_release
from libs.learning.engine.sampling import Sampling
from libs.learning.engine.sequence import Release, Request, Sequence
from libs.learning.engine.weights import load_weights
from libs.learning.model import ModelConfig, load_policy
from libs.learning.objective import ObjectiveConfig
from libs.learning.update import StepConfig
from services.trainer.learner import Learner, LearnerOptions
from services.trainer.store import Store, after_batch

MODEL = Path(__file__).parents[3] / ".clawback/models/smollm2-135m-instruct"
LIST = re.compile(r"^\s*(?:[-*•]|\d+[.)])\s", re.MULTILINE)
HINTS = {
    "anna": "Write the answer as a single paragraph of plain text, without any lists.",
    "ben": "Write the answer as a numbered list, one item a line.",
}
# It asks for structure, so that the base makes lists often, though not always: both have something to reject.
SYSTEM = "You are a helpful homework assistant. Give clear, well-structured, step-by-step answers."
ASKED = (
    "What are the benefits of regular exercise?",
    "What do I need for a camping trip?",
    "What are some ways to save water at home?",
    "What are the main parts of a plant?",
)
HELD_OUT = (
    "What are good habits for studying?",
    "What should I pack for a day at the beach?",
    "What are the causes of air pollution?",
    "What are the main food groups?",
    "How do I prepare for an exam?",
    "What are the layers of the atmosphere?",
)
TOKENS = 72
ROUNDS = 4


def asked(question: str) -> list[dict[str, str]]:
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]


class World:
    def __init__(self, home: Path) -> None:
        policy, tokenizer = load_policy(ModelConfig(path=MODEL))
        self.chat = ChatTokenizer(MODEL)
        self.store = Store(home, base_digest(MODEL))
        options = LearnerOptions(max_loaded=1)
        self.learner = Learner(policy, tokenizer, self.store, ObjectiveConfig(), StepConfig(), options)
        self.base = Decoder(load_weights(MODEL))
        self.releases = {name: Release("base", self.base) for name in HINTS}
        self.count = 0

    def replies(self, name: str, questions: tuple[str, ...], temperature: float, seed: int) -> list[Sequence]:
        engine = Engine(self.base.weights, self.chat.decode, Limits(kv_budget_tokens=16_384))
        out = [
            engine.submit(
                Request(
                    self.chat.prompt_ids(asked(q)),
                    self.releases[name],
                    name,
                    TOKENS,
                    Sampling(temperature=temperature, captured=4),
                    stop_ids=self.base.weights.shape.eos_ids,
                    seed=f"{name}-{seed}-{q}",
                )
            )
            for q in questions
        ]
        self.drawn: dict[int, list[object]] = {id(s): [] for s in out}
        while not engine.idle:
            for sequence, step in engine.step():
                if step.drawn is not None:
                    self.drawn[id(sequence)].append(step.drawn)
        return out

    def share_of_lists(self, name: str) -> float:
        texts = [self.chat.decode(s.generated) for s in self.replies(name, HELD_OUT, 0.0, 0)]
        return sum(bool(LIST.search(t)) for t in texts) / len(texts)

    def learn(self, name: str, seed: int) -> PolicyRelease:
        """One round: four replies, this person's verdicts, one step."""
        samples = [self.judged(name, q, s) for q, s in zip(ASKED, self.replies(name, ASKED, 0.7, seed), strict=True)]
        self.count += 1
        batch = TrainingBatch(batch_id=f"{name}{seed:07d}", scenario=name, samples=samples, created_at=0.0)
        event = self.learner.process(batch, {})
        self.store.put(after_batch(self.store.get(name), event, {}))
        if event.weights is not None:
            self.releases[name] = load_release(event.release_id, event.weights, self.base).release
        return event

    def judged(self, name: str, question: str, s: Sequence) -> Sample:
        listed = bool(LIST.search(self.chat.decode(s.generated)))
        rejected = listed if name == "anna" else not listed
        drawn = self.drawn[id(s)]
        self.count += 1
        return Sample(
            feedback_id=f"{name}-{self.count}",
            turn_id=f"{name}-{self.count}",
            session_id=name,
            reward=-1.0 if rejected else 1.0,
            verdict=-1 if rejected else 1,
            hints=[HINTS[name]] if rejected else [],
            path="/v1/chat/completions",
            request={"messages": asked(question)},
            response={},
            release_id=self.releases[name].release_id,
            capture=Capture(
                prompt_token_ids=Array.ints(s.request.prompt),
                response_token_ids=Array.ints(s.generated),
                logprobs=Array.floats([d.logprob for d in drawn]),
                topk_ids=Array.ints([i for d in drawn for i in d.top_ids], (len(drawn), 4)),
                topk_logprobs=Array.floats([x for d in drawn for x in d.top_logprobs], (len(drawn), 4)),
            ),
            received_at=0.0,
            judged_at=0.0,
        )


@pytest.mark.model
@pytest.mark.timeout(1800)
def test_both_get_theirs(tmp_path: Path) -> None:
    if not (MODEL / "config.json").exists():
        pytest.skip("the model is not prepared: run `make setup`")
    torch.manual_seed(0)
    world = World(tmp_path)
    base = world.share_of_lists("anna")
    drift = []
    for seed in range(ROUNDS):
        for name in HINTS:
            event = world.learn(name, seed)
            print(name, seed, event.event, event.reason, {k: round(v, 3) for k, v in event.metrics.items()})
            drift.append(event.metrics.get("drift_mean", 0.0))
    after = {name: world.share_of_lists(name) for name in HINTS}
    print("lists on held-out questions: base", base, "after", after)
    assert after["anna"] <= base <= after["ben"]
    assert after["ben"] - after["anna"] >= 0.5
    # What was captured while serving is what the trainer computes, for each person's own release.
    assert max(drift) < 0.01
