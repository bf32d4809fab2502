"""Several ranks on one batch: FSDP2 shards the decoder layers, every rank takes its share of the samples.

Each rank holds the whole batch (it is small), takes every world-th sample, and runs as many passes as the busiest
rank, so that the collectives inside FSDP meet; a surplus pass counts with weight 0. The objective's weights are global,
so the sum of the ranks' gradients is the one-rank gradient. Embedding and head stay whole on every rank: they are
frozen under LoRA, and with tied weights both are one tensor.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

T = TypeVar("T")


def world() -> tuple[int, int]:
    """(rank, number of ranks); (0, 1) without a process group."""
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


def meet() -> None:
    """Wait until every rank is here."""
    if dist.is_initialized():
        dist.barrier()


def shard_layers(causal: Any) -> None:
    """Shard the decoder layers of a transformers model over all ranks, in place."""
    for layer in causal.model.layers:
        fully_shard(layer)


def share_of(items: Sequence[T], rank: int, ranks: int) -> list[T]:
    """This rank's items. A rank beyond the number of items gets the first, to be weighted with 0."""
    return list(items[rank::ranks]) or list(items[:1])


def padded(packs: list[list[int]], most: int) -> list[tuple[list[int], float]]:
    """Packs with their weight: 1 for real ones, then as many empty-handed repeats as the busiest rank needs."""
    return [(p, 1.0) for p in packs] + [(packs[0], 0.0)] * (most - len(packs))


def sum_over_ranks(values: dict[str, float]) -> dict[str, float]:
    """Each value summed over the ranks. The keys must be the same on all of them."""
    if world()[1] == 1:
        return values
    names = sorted(values)
    total = torch.tensor([values[n] for n in names], dtype=torch.float64)
    dist.all_reduce(total)
    return dict(zip(names, total.tolist(), strict=True))


def gather(values: dict[str, Any]) -> dict[str, Any]:
    """All ranks' entries in one mapping."""
    ranks = world()[1]
    if ranks == 1:
        return values
    each: list[dict[str, Any]] = [{}] * ranks
    dist.all_gather_object(each, values)
    return {k: v for part in each for k, v in part.items()}


def average_whole_gradients(parameters: Sequence[Tensor]) -> None:
    """FSDP averages the gradients of sharded parameters; do the same for those that every rank holds whole."""
    ranks = world()[1]
    if ranks == 1:
        return
    for p in parameters:
        if p.grad is not None and not isinstance(p.grad, DTensor):
            dist.all_reduce(p.grad)
            p.grad /= ranks


def clip_gradients(parameters: Sequence[Tensor], most: float) -> float:
    """Scale all gradients so that their common norm is at most `most`. Returns the norm before, inf or nan as it is."""
    grads = [p.grad for p in parameters if p.grad is not None]
    squares = 0.0
    for grad in grads:
        norm = grad.norm()
        squares += float((norm.full_tensor() if isinstance(norm, DTensor) else norm) ** 2)
    total = math.sqrt(squares) if math.isfinite(squares) else squares
    if total > most and math.isfinite(total):
        for grad in grads:
            grad.mul_(most / (total + 1e-6))
    return total


def whole(tensor: Tensor) -> Tensor:
    """The full tensor on the CPU, a copy; gathered from all ranks when it is sharded (then all must call)."""
    full = tensor.detach()
    if isinstance(full, DTensor):
        full = full.full_tensor()
    return full.to("cpu", copy=True)


@torch.no_grad()
def fill(parameter: Tensor, value: Tensor) -> None:
    """Copy a full tensor into a parameter, sharding it like the parameter."""
    if isinstance(parameter, DTensor):
        value = distribute_tensor(value.to(parameter.device), parameter.device_mesh, parameter.placements)
    parameter.copy_(value)
