"""A release on disk: the serving form (peft adapter or full model) with what the trainer needs to go on beside it.

<release>/adapter_config.json, adapter_model.safetensors    LoRA, as peft and vLLM read it
<release>/config.json, model.safetensors, tokenizer files    full fine-tuning, as transformers reads it
<release>/trainer/optimizer.safetensors, step.json           optimizer, RNG, consumed position, trained feedback

A release appears whole or not at all: it is written beside its name, every file and directory is synced, then renamed.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from libs.contracts import Adapter
from libs.errors import ConfigError, StopError
from libs.learning.model import Policy
from libs.learning.scale import fill, meet, whole, world

_WEIGHTS = {"lora": "adapter_model.safetensors", "full": "model.safetensors"}
_SIDE_FILES = ("*.json", "*.jinja", "*.model", "*.txt")
_BESIDE = ("optimizer.safetensors", "step.json", "probes.json")  # in <release>/trainer; the gate's answers are the last


class StepRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What is written with the weights and belongs to exactly this release."""

    release_id: str
    parent_id: str
    batch_id: str
    position: dict[str, int]  # "<topic>-<partition>" -> next offset to read once this release is published
    trained: list[str]  # feedback ids of this step
    config: dict[str, Any]  # objective and step settings as used
    base_digest: str  # of the base model's config and weights' size: a checkpoint does not fit another base
    rng_state: str  # torch's, hex
    files: list[str] = []  # everything that was written with it, relative to the release; empty: before 0.1 wrote it


def check_replaceable(target: Path, what: str) -> None:
    """Raise ConfigError that starts with `what` when something lies at `target` that is not an earlier release alone.

    A release is known by its step record and holds nothing but what was written with it.
    """
    if not target.exists() and not target.is_symlink():
        return
    if not target.is_dir() or target.is_symlink():
        raise ConfigError(f"{what} {target} is a file or a link; name a directory for the release")
    found = sorted(str(p.relative_to(target)) for p in target.rglob("*") if not p.is_dir() or p.is_symlink())
    if not found and not any(target.iterdir()):
        return
    strange = _strange(target, found)
    if strange:
        raise ConfigError(
            f"{what} {target} holds {strange[0]}, which no release wrote, and writing a release would remove it; "
            "name a new or empty directory"
        )


def _strange(target: Path, found: list[str]) -> list[str]:
    """What lies in the directory and was not written with a release; all of it when there is no step record."""
    try:
        known = set(read_record(target).files)
    except (OSError, msgspec.MsgspecError):
        return found or [str(next(target.iterdir()).name)]
    beside = {f"trainer/{name}" for name in _BESIDE}
    if known:
        return [name for name in found if name not in known | beside]
    weights = {"adapter_config.json", "README.md", *_WEIGHTS.values()}
    side = _SIDE_FILES if (target / _WEIGHTS["full"]).exists() else ()
    return [
        name
        for name in found
        if name not in weights | beside and not ("/" not in name and any(Path(name).match(p) for p in side))
    ]


def write_atomically(target: Path, fill: Callable[[Path], None]) -> None:
    """Make directory `target` appear with what `fill` writes, or not at all. An earlier release there is replaced.

    Raises ConfigError when something else lies there by then; what was written stays beside it.
    """
    partial, former = target.with_name(f".{target.name}.partial"), target.with_name(f".{target.name}.former")
    shutil.rmtree(partial, ignore_errors=True)
    if former.exists() and not target.exists():  # a crash between the two renames below
        former.rename(target)
    shutil.rmtree(former, ignore_errors=True)
    partial.mkdir(parents=True)
    fill(partial)
    for path in [*partial.rglob("*"), partial]:
        sync(path)
    check_replaceable(target, f"{partial} is the release that was to be written, but")
    if target.exists():
        target.rename(former)
    partial.rename(target)
    sync(target.parent)
    shutil.rmtree(former, ignore_errors=True)


def write_file_atomically(target: Path, data: bytes) -> None:
    """Replace a file's content in one step that survives a crash."""
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.partial")
    with partial.open("wb") as sink:
        sink.write(data)
        sink.flush()
        os.fsync(sink.fileno())
    partial.rename(target)
    sync(target.parent)


def sync(path: Path) -> None:
    """fsync a file or a directory."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def save_release(target: Path, policy: Policy, optimizer: torch.optim.Optimizer, record: StepRecord) -> Adapter:
    """Write the policy's present tensors as a release. Returns where they lie and the digest of the weight file.

    With several ranks all of them must call; the first one writes, onto storage that all of them see.
    """
    kind = policy.config.mode
    tensors, moments = policy.state(), optimizer_tensors(policy, optimizer)

    def write(directory: Path) -> None:
        save_file(tensors, directory / _WEIGHTS[kind], metadata={"format": "pt"})
        if policy.peft is not None:
            policy.peft.peft_config["default"].save_pretrained(str(directory))
        else:
            for pattern in _SIDE_FILES:
                for path in policy.config.path.glob(pattern):
                    shutil.copy2(path, directory / path.name)
        beside = directory / "trainer"
        beside.mkdir()
        save_file(moments, beside / "optimizer.safetensors")
        files = [str(p.relative_to(directory)) for p in directory.rglob("*") if p.is_file()]
        whole_record = msgspec.structs.replace(record, files=sorted([*files, "trainer/step.json"]))
        (beside / "step.json").write_bytes(msgspec.json.encode(whole_record))

    if world()[0] == 0:
        write_atomically(target, write)
    meet()
    return Adapter(kind=kind, uri=str(target), digest=digest(target / _WEIGHTS[kind]))


def load_release(policy: Policy, optimizer: torch.optim.Optimizer, weights: Adapter) -> bool:
    """Put a release's tensors, optimizer and RNG in place. Returns whether the optimizer's state was there.

    Raises StopError (reason "checkpoint") when the weights are missing or not the ones that were published.
    """
    directory = Path(weights.uri)
    path = directory / _WEIGHTS[weights.kind]
    if not path.exists():
        raise StopError(f"no weights at {path}; restore the directory or roll back", reason="checkpoint")
    if digest(path) != weights.digest:
        raise StopError(f"{path} is not what was published (sha256 differs); restore it", reason="checkpoint")
    policy.load(load_file(path))
    beside = directory / "trainer"
    stored = beside / "optimizer.safetensors"
    load_optimizer(policy, optimizer, load_file(stored) if stored.exists() else {})
    if (beside / "step.json").exists():
        record = read_record(directory)
        torch.set_rng_state(torch.frombuffer(bytearray.fromhex(record.rng_state), dtype=torch.uint8))
    return stored.exists()


def read_record(directory: Path) -> StepRecord:
    """The step record beside a release's weights."""
    return msgspec.json.decode((directory / "trainer" / "step.json").read_bytes(), type=StepRecord)


def optimizer_tensors(policy: Policy, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """AdamW's state under "<parameter>/<field>"."""
    out = {}
    for name, parameter in policy.named_trainable().items():
        for field, value in optimizer.state.get(parameter, {}).items():
            out[f"{name}/{field}"] = whole(torch.as_tensor(value)).contiguous()
    return out


def load_optimizer(policy: Policy, optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """Replace the optimizer's state by `tensors` (as optimizer_tensors gave them; empty: a fresh optimizer)."""
    optimizer.state.clear()
    parameters = policy.named_trainable()
    for key, tensor in tensors.items():
        name, _, field = key.rpartition("/")
        parameter = parameters[name]
        if field == "step":  # AdamW keeps its counter on the CPU, the moments where the parameter is
            optimizer.state[parameter][field] = tensor.clone()
            continue
        moment = torch.zeros_like(parameter, requires_grad=False)
        fill(moment, tensor)
        optimizer.state[parameter][field] = moment


def digest(path: Path) -> str:
    """sha256 of a file, in hex."""
    with path.open("rb") as source:
        return hashlib.file_digest(source, "sha256").hexdigest()


def base_digest(model_dir: Path) -> str:
    """Identifies a base model cheaply: its config's content and its weight files' names and sizes."""
    seen = hashlib.sha256((model_dir / "config.json").read_bytes())
    for path in sorted(model_dir.glob("*.safetensors")):
        seen.update(f"{path.name}:{path.stat().st_size}".encode())
    return seen.hexdigest()
