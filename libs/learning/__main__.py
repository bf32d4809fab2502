"""Run optimizer steps offline on batches or judged turns in JSONL files.

    clawback train judged.jsonl --model .clawback/models/smollm2-135m-instruct --output adapter/
    torchrun --nproc-per-node 2 -m libs.learning judged.jsonl --model ... --output ...

One line of JSON per batch on standard output; the adapter (or the full model) in --output, as vLLM and transformers
read it. Every objective setting is a flag of its own.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

from libs.contracts.lines import add_inputs, input_files, number_from
from libs.contracts.terminal import complain, os_fault, plain_json, reader_gone
from libs.errors import ClawbackError, ConfigError, DeadLetterError

_OBJECTIVE = {
    "w_rl": "weight of the reward term (PPO)",
    "w_opd": "weight of the distillation term (OPD, from the hinted base)",
    "kl_coef": "weight of KL(policy || base)",
    "anchor_coef": "weight of turns without a hint in the distillation term; above 0 it pulls back to the base",
    "clip_low": "PPO: the ratio is clipped below 1 - this",
    "clip_high": "PPO: the ratio is clipped above 1 + this",
    "clamp": "bound on a candidate's advantage, in nats",
    "top_k": "captured candidates used for each token",
    "selection": "which of several hints teaches: sequence_optimal, token_optimal or shortest",
    "subset": "whose candidates count: student, teacher or overlap",
}


def main(argv: list[str] | None = None) -> int:
    """Returns the exit status: 0, or 1 with the reason on standard error."""
    args = _arguments(argv)
    try:
        _train(args)
    except ClawbackError as error:
        complain(f"error: {error}")
        return 1
    except BrokenPipeError:
        reader_gone()
        complain("error: standard output was closed before the last step; no release is written")
        return 1
    except OSError as error:
        complain(f"error: {os_fault(error)}")
        return 1
    return 0


class _Help(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Defaults behind each help text where there is one, the description as it is written."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        return action.help if action.default in (None, False, []) else super()._get_help_string(action)


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    from libs.learning.objective import ObjectiveConfig

    parser = argparse.ArgumentParser(
        prog="clawback train",
        usage="%(prog)s FILE... --model DIR --output DIR [options]",
        description=__doc__,
        formatter_class=_Help,
    )
    add_inputs(parser, "training batches or judged turns")
    parser.add_argument("--model", type=Path, required=True, metavar="DIR", help="base model directory")
    parser.add_argument(
        "--output",
        "--out",
        dest="out",
        type=Path,
        required=True,
        metavar="DIR",
        help="directory to write the release to",
    )
    parser.add_argument("--mode", choices=["lora", "full"], default="lora", help="train an adapter, or every weight")
    parser.add_argument("--lora-rank", type=number_from(1), default=32, help="rank of the adapter")
    parser.add_argument("--lora-alpha", type=number_from(1), default=64, help="the adapter is scaled by alpha / rank")
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1, ...")
    parser.add_argument(
        "--dtype", choices=["float32", "bfloat16"], default="float32", help="of the base model's weights"
    )
    parser.add_argument(
        "--learning-rate", type=number_from(0, float, above=True), default=1e-3, help="of AdamW, constant"
    )
    parser.add_argument(
        "--batch-size",
        type=number_from(1),
        default=4,
        help="judged turns per step; batches are taken as they are",
    )
    parser.add_argument("--max-sample-tokens", type=number_from(1), default=4096, help="longer turns are left out")
    parser.add_argument("--pack-tokens", type=number_from(1), default=4096, help="tokens of one pass; bounds memory")
    parser.add_argument(
        "--checkpoint-activations",
        action="store_true",
        help="compute activations again in the backward pass: less memory",
    )
    parser.add_argument("--train-accepted", action="store_true", help="also step when nothing was rejected")
    for field in dataclasses.fields(ObjectiveConfig):
        flag = f"--{field.name.replace('_', '-')}"
        kind = {float: number_from(0, float), int: number_from(1)}.get(type(field.default), str)
        parser.add_argument(flag, type=kind, default=field.default, help=_OBJECTIVE[field.name])
    args = parser.parse_args(argv)
    args.files = input_files(parser, args)
    return args


def _train(args: argparse.Namespace) -> None:
    import torch
    import torch.distributed as dist

    from libs.learning.checkpoint import StepRecord, base_digest, save_release
    from libs.learning.model import ModelConfig, load_policy
    from libs.learning.objective import ObjectiveConfig, check_coefficients
    from libs.learning.offline import check_device, check_paths, read_batches
    from libs.learning.scale import world
    from libs.learning.teacher import StepConfig

    objective = ObjectiveConfig(**{f.name: getattr(args, f.name) for f in dataclasses.fields(ObjectiveConfig)})
    check_coefficients(objective)
    check_paths(args.files, args.model, args.out)
    args.out = args.out.resolve()  # through a link: to where it leads
    check_device(args.device)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        dist.init_process_group("nccl" if args.device.startswith("cuda") else "gloo")
    try:
        policy, tokenizer = load_policy(
            ModelConfig(
                path=args.model,
                mode=args.mode,
                lora_rank=args.lora_rank,
                lora_alpha=args.lora_alpha,
                dtype=args.dtype,
                device=args.device,
                checkpoint_activations=args.checkpoint_activations,
            )
        )
        optimizer = torch.optim.AdamW(list(policy.named_trainable().values()), lr=args.learning_rate, weight_decay=0.0)
        step = StepConfig(learning_rate=args.learning_rate, pack_tokens=args.pack_tokens)
        trained: list[str] = []
        why: Counter[str] = Counter()  # what each step ended in
        for batch in read_batches(args.files, args.batch_size, _left_out):
            line, ids = _step(batch, policy, tokenizer, optimizer, objective, step, args)
            trained += ids
            why["applied" if line["applied"] else line["reason"]] += 1
            if world()[0] == 0:
                print(plain_json(json.dumps(line)), flush=True)
        check_steps(why)
        record = StepRecord(
            release_id=args.out.name,
            parent_id="base",
            batch_id="",
            position={},
            trained=trained,
            config=dataclasses.asdict(objective) | dataclasses.asdict(step),
            base_digest=base_digest(args.model),
            rng_state=bytes(torch.get_rng_state().numpy()).hex(),
        )
        save_release(args.out, policy, optimizer, record)
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def check_steps(why: Counter[str]) -> None:
    """Raise ConfigError when there was nothing to train on; say so when no step was taken. `why`: steps by outcome."""
    if not why:
        raise ConfigError("nothing to train on: name files of training batches, or of judged turns with a capture")
    if set(why) == {"no_samples"}:
        raise ConfigError(
            "nothing was trained and no release is written: every sample was left out ('dropped' says why for each)"
        )
    if not why["applied"] and _first():
        told = ", ".join(f"{reason} {n}" for reason, n in why.items())
        more = "; --train-accepted steps without a rejection, too" if why["nothing_rejected"] else ""
        complain(f"no step was taken ({told}): the release equals the base{more}")


def _first() -> bool:
    """The one of several ranks that speaks."""
    return os.environ.get("RANK", "0") == "0"


def _left_out(fault: str) -> None:
    if _first():
        complain(f"left out: {fault}")


def _step(
    batch: Any, policy: Any, tokenizer: Any, optimizer: Any, objective: Any, step: Any, args: argparse.Namespace
) -> tuple[dict[str, Any], list[str]]:
    """One batch: what is printed about it, and the feedback ids that it trained."""
    from libs.learning.offline import train_sample
    from libs.learning.samples import Limits, admit
    from libs.learning.update import run_step

    limits = Limits(min(args.max_sample_tokens, policy.context_tokens), policy.vocab_size)
    ready: list[Any] = []
    refused: dict[str, str] = {}
    for sample in batch.samples:
        try:
            ready.append(train_sample(sample, tokenizer))
        except DeadLetterError as error:
            refused[sample.feedback_id] = error.reason
            _left_out(f"{batch.batch_id}, feedback {sample.feedback_id}: {error}")
    samples, unfit, _ = admit(ready, limits)
    line: dict[str, Any] = {"batch_id": batch.batch_id, "scenario": batch.scenario, "dropped": refused | unfit}
    if not samples:
        return line | {"applied": False, "reason": "no_samples"}, []
    if not args.train_accepted and not any(s.rejected for s in samples):
        return line | {"applied": False, "reason": "nothing_rejected"}, []
    result = run_step(policy, optimizer, samples, objective, step)
    ids = [s.feedback_id for s in samples] if result.applied else []
    return line | {"applied": result.applied, "reason": result.reason, "metrics": result.metrics}, ids


if __name__ == "__main__":
    sys.exit(main())
