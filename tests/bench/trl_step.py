"""One step of TRL's KTOTrainer on the bench's batch: its closest trainer, verdicts on given replies against a frozen
reference. Same model, LoRA rank, prompts and reply lengths. Run by step_bench.py in a process of its own, with TRL on
PYTHONPATH; prints the median seconds of a step and the tokens of the batch as JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

from datasets import Dataset, fingerprint
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import KTOConfig, KTOTrainer

from tests.bench.step_bench import QUESTIONS, SYSTEM

# datasets hashes all that a table or a map function can reach, to find its cached result again. That fails with these
# versions, and nothing here is to be found again.
fingerprint.Hasher.hash = staticmethod(lambda _: fingerprint.generate_random_fingerprint())


class Clock(TrainerCallback):
    def __init__(self) -> None:
        self.seconds: list[float] = []

    def on_step_begin(self, *_: object, **__: object) -> None:
        self._start = time.perf_counter()

    def on_step_end(self, *_: object, **__: object) -> None:
        self.seconds.append(time.perf_counter() - self._start)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--tokens", type=int, required=True)
    parser.add_argument("--repeats", type=int, required=True)
    args = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(args.model, padding_side="left", pad_token="<|im_end|>")
    word = " water"  # one token
    rows = []
    for i in range(args.count * (args.repeats + 1)):
        prompt = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": QUESTIONS[i % len(QUESTIONS)]}]
        reply = [{"role": "assistant", "content": (word * (args.tokens - 2)).strip()}]
        rows.append({"prompt": prompt, "completion": reply, "label": i % 2 == 0})
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        trainer = KTOTrainer(
            model=AutoModelForCausalLM.from_pretrained(args.model),
            args=KTOConfig(
                output_dir=folder,
                per_device_train_batch_size=args.count,
                max_steps=args.repeats + 1,
                learning_rate=1e-6,
                use_cpu=True,
                bf16=False,
                gradient_checkpointing=False,
                report_to=[],
                save_strategy="no",
                logging_strategy="no",
            ),
            train_dataset=Dataset.from_list(rows),
            processing_class=tokenizer,
            peft_config=LoraConfig(r=32, lora_alpha=64, target_modules="all-linear", task_type="CAUSAL_LM"),
            callbacks=[clock],
        )
        trainer.train()
    texts = [[*r["prompt"], *r["completion"]] for r in rows[: args.count]]
    tokens = sum(len(tokenizer.apply_chat_template(t, return_dict=False)) for t in texts)
    print(json.dumps({"seconds": statistics.median(clock.seconds[1:]), "tokens": tokens}))


if __name__ == "__main__":
    main()
