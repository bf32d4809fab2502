"""Step time against its floor, memory against the naive form. Writes runs/bench-step.json.

floor  the forward and backward passes that the batch needs and nothing else: the frozen base over the un-hinted and
       the hinted prompts, the student forward and backward, head on the response rows, same packs, a trivial loss
trl    TRL's KTOTrainer (trl_step.py) in the same run, if it is installed in .clawback/bench/trl
naive  the student's logits for whole padded sequences, kept for the backward pass, as the textbook writes it
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import numpy as np
import torch
import torch.nn.functional as F

from libs.learning.model import ModelConfig, Policy, load_policy
from libs.learning.objective import ObjectiveConfig
from libs.learning.packing import pack
from libs.learning.prompts import render
from libs.learning.samples import TrainSample, hinted_prompts
from libs.learning.update import StepConfig, run_step

ROOT = Path(__file__).parents[2]
SYSTEM = "You are a helpful homework assistant. Give clear, well-structured, step-by-step answers."
HINT = "Write the answer as a single paragraph of plain text, without any lists."
QUESTIONS = (
    "What are the main causes of the First World War?",
    "How do plants make their food?",
    "What kinds of plastic are there?",
    "Explain the steps of the water cycle.",
    "Why do we have seasons?",
    "How does a bill become a law?",
    "What should I know about photosynthesis?",
    "Describe the layers of the atmosphere.",
)


def samples(tokenizer: Any, count: int, tokens: int, vocab: int) -> list[TrainSample]:
    """Judged turns of `tokens` response tokens each; what the tokens say does not change the time."""
    out = []
    for i in range(count):
        rng = np.random.default_rng(i)
        messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": QUESTIONS[i % len(QUESTIONS)]}]
        top = rng.integers(0, vocab, (tokens, 4))
        out.append(
            TrainSample(
                feedback_id=str(i),
                prompt_ids=tuple(render(tokenizer, messages)),
                response_ids=tuple(int(t) for t in top[:, 0]),
                topk_ids=top,
                captured_logp=np.zeros(tokens, np.float32),
                hint_prompts=hinted_prompts(tokenizer, messages, None, [HINT]),
                reward=-1.0,
            )
        )
    return out


def floor(policy: Policy, batch: list[TrainSample]) -> None:
    """Only the passes, in the same packs as the step."""
    plain = [(*s.prompt_ids, *s.response_ids[:-1]) for s in batch]
    hinted = [(*s.hint_prompts[0], *s.response_ids[:-1]) for s in batch]
    lengths = [len(s.response_ids) for s in batch] * 2
    with torch.no_grad():
        layout = pack(plain + hinted)
        hidden = policy.hidden(layout, base=True)
        rows = np.concatenate([r[-n:] for r, n in zip(layout.rows, lengths, strict=True)])
        for part in hidden[torch.from_numpy(rows)].split(128):
            policy.head(part, base=True)
    layout = pack(plain)
    rows = np.concatenate([r[-n:] for r, n in zip(layout.rows, lengths, strict=False)])
    hidden = policy.hidden(layout)[torch.from_numpy(rows)]
    torch.cat([policy.head(part).mean(1) for part in hidden.split(128)]).sum().backward()


def naive(policy: Policy, batch: list[TrainSample]) -> None:
    """Padded batch, all logits of all positions, log-softmax over the vocabulary, for base and student."""
    width = max(len(s.prompt_ids) + len(s.response_ids) for s in batch)
    ids = torch.tensor(
        [[*s.prompt_ids, *s.response_ids, *[0] * (width - len(s.prompt_ids) - len(s.response_ids))] for s in batch]
    )
    policy.causal.set_attn_implementation("sdpa")
    with torch.no_grad(), policy.peft.disable_adapter():
        base = F.log_softmax(policy.causal(ids, use_cache=False).logits, -1)
    logp = F.log_softmax(policy.causal(ids, use_cache=False).logits, -1)
    loss = (logp.exp() * (logp - base)).sum(-1).mean() - logp[:, :-1].gather(2, ids[:, 1:, None]).mean()
    loss.backward()


def timed(work: Callable[[], object], repeats: int) -> list[float]:
    out = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        out.append(time.perf_counter() - start)
    return out


def peak_mib(kind: str, args: argparse.Namespace) -> float:
    """Peak memory that `kind` adds to the loaded model, in a process of its own, in MiB."""
    command = [sys.executable, __file__, "--measure", kind, "--model", str(args.model), "--count", str(args.count)]
    command += ["--tokens", str(args.tokens)]
    run = subprocess.run(
        command, capture_output=True, text=True, check=True, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    return float(run.stdout.strip().splitlines()[-1])


def trl_tokens_per_second(args: argparse.Namespace) -> float | None:
    """TRL's closest trainer on the same model, batch and threads; None when it is not installed."""
    home = ROOT / ".clawback/bench/trl"
    if not home.exists():
        return None
    command = [sys.executable, "-m", "tests.bench.trl_step", "--model", str(args.model), "--count", str(args.count)]
    command += ["--tokens", str(args.tokens), "--repeats", str(max(args.repeats - 2, 2))]
    env = {**os.environ, "PYTHONPATH": f"{home}:{ROOT}"}
    run = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=env, check=False)
    if run.returncode:
        print(run.stderr[-2000:], file=sys.stderr)
        return None
    found = json.loads(run.stdout.strip().splitlines()[-1])
    return float(found["tokens"] / found["seconds"])


def status_kib(field: str) -> int:
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith(field + ":"))
    return int(line.split()[1])


def prepare(args: argparse.Namespace) -> tuple[Policy, torch.optim.Optimizer, list[TrainSample]]:
    policy, tokenizer = load_policy(ModelConfig(path=args.model))
    optimizer = torch.optim.AdamW(list(policy.named_trainable().values()), lr=1e-6, weight_decay=0, fused=True)
    return policy, optimizer, samples(tokenizer, args.count, args.tokens, policy.vocab_size)


def measure(args: argparse.Namespace) -> None:
    policy, optimizer, batch = prepare(args)
    before = status_kib("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    if args.measure == "naive":
        naive(policy, batch)
    else:
        run_step(policy, optimizer, batch, ObjectiveConfig(), StepConfig())
    print((status_kib("VmHWM") - before) / 1024)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=ROOT / ".clawback/models/smollm2-135m-instruct")
    parser.add_argument("--count", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=80)
    parser.add_argument("--memory-tokens", type=int, default=320, help="reply length of the memory comparison")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=ROOT / "runs/bench-step.json")
    parser.add_argument("--measure", choices=["naive", "step"])
    args = parser.parse_args()
    if args.measure:
        measure(args)
        return
    policy, optimizer, batch = prepare(args)

    def step() -> None:
        assert run_step(policy, optimizer, batch, ObjectiveConfig(), StepConfig()).applied

    def bare() -> None:
        floor(policy, batch)
        optimizer.zero_grad(set_to_none=True)

    step(), bare()
    pairs = [(timed(step, 1)[0], timed(bare, 1)[0]) for _ in range(args.repeats)]  # taken in turn: the machine drifts
    steps, floors = zip(*pairs, strict=True)
    tokens = sum(len(s.prompt_ids) + len(s.response_ids) for s in batch)
    theirs = trl_tokens_per_second(args)
    memory = {kind: peak_mib(kind, args) for kind in ("step", "naive")}
    result = {
        "step_seconds": statistics.median(steps),
        "floor_seconds": statistics.median(floors),
        "step_over_floor": statistics.median(s / f for s, f in pairs),
        "step_tokens_per_second": tokens / statistics.median(steps),
        "trl_kto_tokens_per_second": theirs,
        "step_over_trl_kto": tokens / statistics.median(steps) / theirs if theirs else None,
        "step_peak_mib": memory["step"],
        "naive_peak_mib": memory["naive"],
        "step_memory_over_naive": memory["step"] / memory["naive"],
        "samples": args.count,
        "response_tokens": args.tokens,
        "memory_response_tokens": args.memory_tokens,
        "threads": torch.get_num_threads(),
    }
    result = {name: value for name, value in result.items() if value is not None}  # no TRL, no figure
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(result, indent=2))
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
