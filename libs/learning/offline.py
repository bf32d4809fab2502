"""Training from files: JSONL of training batches or of judged turns in, one release directory out.

Judged turns are grouped in file order. Requests must hold chat messages (OpenAI's form); the trainer service reads
every dialect.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from libs.contracts import Sample, TrainingBatch, TurnJudged, decode
from libs.contracts.lines import read_lines
from libs.contracts.training_batches import sample_of
from libs.errors import ConfigError, ContractError
from libs.learning.prompts import ChatMessage
from libs.learning.samples import TrainSample, hinted_prompts


def read_batches(
    paths: Sequence[Path], batch_size: int, left_out: Callable[[str], None] | None = None
) -> Iterator[TrainingBatch]:
    """Batches of one scenario each, in file order; each feedback once, however often it is in the files.

    Judged turns that were dropped or not captured are left out; the last group of each scenario may be smaller. What
    is left out for a fault goes to `left_out` as "file:line: fault"; without it, a line that is no record raises
    ContractError that says the same.
    """
    seen: set[tuple[str, str]] = set()

    def new(scenario: str, feedback_id: str) -> bool:
        known = (scenario, feedback_id) in seen
        if known and left_out is not None:
            left_out(f"{path}:{number}: feedback {feedback_id} has been read before")
        seen.add((scenario, feedback_id))
        return not known

    groups: dict[str, list[Sample]] = {}
    made = 0
    for path in paths:
        for number, line in read_lines(path):
            try:
                record = _record(line)
            except ContractError as error:
                if left_out is None:
                    raise ContractError(f"{path}:{number}: {error}") from error
                left_out(f"{path}:{number}: {error}")
                continue
            if isinstance(record, TrainingBatch):
                samples = [s for s in record.samples if new(record.scenario, s.feedback_id)]
                yield msgspec.structs.replace(record, samples=samples)
            elif record.disposition == "train" and record.capture and new(record.scenario, record.feedback_id):
                group = groups.setdefault(record.scenario, [])
                group.append(sample_of(record))
                if len(group) == batch_size:
                    made += 1
                    yield _batch(made, record.scenario, groups.pop(record.scenario))
    for scenario, group in groups.items():
        made += 1
        yield _batch(made, scenario, group)


def check_paths(files: Sequence[Path], model: Path, out: Path) -> None:
    """Raise ConfigError, before a model is loaded, when a file is missing or writing to `out` would lose something:
    the model, an input, or whatever else lies there and is not an earlier release. Links are followed.
    """
    from libs.learning.checkpoint import check_replaceable

    for path in files:
        if not path.is_file():
            raise ConfigError(f"{path}: no such file; name JSONL files of training batches or judged turns")
    target = out.resolve()
    if out.exists() and not out.is_dir():
        raise ConfigError(f"--output {out} is a file; name a directory for the release")
    for what, path in (("the model", model), *(("the input", path) for path in files)):
        if path.resolve().is_relative_to(target):
            where = "is" if path.resolve() == target else "holds"
            raise ConfigError(
                f"--output {out} {where} {what} {path}, which writing a release would remove; name a new directory"
            )
    check_replaceable(target, "--output")
    above = next(p for p in target.parents if p.exists())
    if not above.is_dir() or not os.access(above, os.W_OK):
        raise ConfigError(f"--output {out}: nothing can be written in {above}; name another directory")


def check_device(name: str) -> None:
    """Raise ConfigError when this machine cannot compute on the device (`cpu`, `cuda`, `cuda:1`, ...)."""
    import torch

    try:
        torch.zeros(1, device=name).item()
    except (RuntimeError, AssertionError, ValueError, NotImplementedError) as error:
        raise ConfigError(
            f"--device {name} cannot be used: {str(error).strip().splitlines()[0]}; give --device cpu"
        ) from error


def _record(line: bytes) -> TrainingBatch | TurnJudged:
    try:
        names = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError) as error:
        raise ContractError(f"not a JSON object: {error}") from error
    except RecursionError as error:
        raise ContractError("not a JSON object: nested too deeply") from error
    return decode(line, TrainingBatch) if "samples" in names else decode(line, TurnJudged)


def _batch(number: int, scenario: str, samples: list[Sample]) -> TrainingBatch:
    return TrainingBatch(batch_id=f"offline-{number:06d}", scenario=scenario, samples=samples, created_at=0.0)


def train_sample(sample: Sample, tokenizer: Any, messages: Sequence[ChatMessage] | None = None) -> TrainSample:
    """One sample with its hinted prompts rendered from `messages` (default: the request's own chat messages).

    Raises ContractError or DeadLetterError naming what is wrong.
    """
    capture = sample.capture
    capture.check()
    given = chat_messages(sample.request) if messages is None else messages
    tools = sample.request.get("tools") if isinstance(sample.request, dict) else None
    return TrainSample(
        feedback_id=sample.feedback_id,
        prompt_ids=tuple(int(i) for i in capture.prompt_token_ids.values()),
        response_ids=tuple(int(i) for i in capture.response_token_ids.values()),
        topk_ids=np.array(capture.topk_ids.values(), dtype=np.int64).reshape(capture.topk_ids.shape),
        captured_logp=np.array(capture.logprobs.values(), dtype=np.float32),
        hint_prompts=hinted_prompts(tokenizer, given, tools if isinstance(tools, list) else None, sample.hints),
        reward=sample.reward,
        weight=sample.weight,
        release_id=sample.release_id,
    )


def chat_messages(request: Any) -> list[ChatMessage]:
    """The messages of a chat completions request. Raises ContractError when there are none."""
    messages = request.get("messages") if isinstance(request, dict) else None
    if not isinstance(messages, list) or not all(isinstance(m, dict) and "role" in m for m in messages):
        raise ContractError("request.messages must be a list of chat messages; other dialects need the trainer service")
    return [{**m, "content": m.get("content") or ""} for m in messages]
