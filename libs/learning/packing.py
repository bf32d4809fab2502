"""Packed sequences: many prompts and responses in one row of tokens, without padding, each shared prefix once.

Sequences are laid out one after another. A sequence that starts like an earlier one does not repeat the common
prefix: its own tokens attend to the earlier sequence's keys and values there. Turns of one session, the hinted and
the un-hinted form of one prompt, and all turns under one system prompt thus share what they have in common. The
result equals running every sequence alone (causal attention sees only a token's own path), forward and backward.

Shapes: L packed tokens, n_i tokens of sequence i before sharing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AttentionInterface

ATTENTION = "clawback_packed"  # attn_implementation under which the models run
# Below this many common tokens, gathering the shared keys costs more than computing them again.
MIN_SHARED_TOKENS = 8

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Segment:
    """One sequence's own tokens: packed rows [start, end). `path` int64 [n]: the rows of its whole history and itself.

    `path` is None when nothing is shared (the sequence is its own rows).
    """

    start: int
    end: int
    path: Tensor | None
    mask: Tensor | None  # bool [end - start, n], causal; None when nothing is shared


@dataclass(frozen=True, slots=True)
class Layout:
    """A pack: what goes into the model, and where each sequence's tokens ended up."""

    input_ids: Tensor  # int64 [1, L]
    position_ids: Tensor  # int64 [1, L]
    segments: tuple[Segment, ...]
    rows: tuple[Ids, ...]  # per sequence, int64 [n_i]: the packed row of each of its tokens
    unshared_tokens: int  # sum of n_i: what it would have been without sharing

    @property
    def tokens(self) -> int:
        return int(self.input_ids.shape[1])


def common_prefix(a: Ids, b: Ids) -> int:
    """How many leading tokens two sequences have in common."""
    n = min(len(a), len(b))
    differ = np.flatnonzero(a[:n] != b[:n])
    return int(differ[0]) if len(differ) else n


def pack(sequences: Sequence[Sequence[int]], *, share: bool = True, device: torch.device | None = None) -> Layout:
    """Lay out non-empty sequences of token ids. `share` False repeats common prefixes."""
    arrays = [np.asarray(s, dtype=np.int64) for s in sequences]
    ids: list[Ids] = []
    positions: list[Ids] = []
    segments: list[Segment] = []
    rows: list[Ids] = []
    used = 0
    for i, own in enumerate(arrays):
        shared, source = (
            max(((common_prefix(own, arrays[j]), j) for j in range(i)), default=(0, 0)) if share else (0, 0)
        )
        if shared < MIN_SHARED_TOKENS:
            shared = 0
        fresh = np.arange(used, used + len(own) - shared, dtype=np.int64)
        path = np.concatenate([rows[source][:shared], fresh]) if shared else fresh
        rows.append(path)
        if len(fresh):
            ids.append(own[shared:])
            positions.append(np.arange(shared, len(own), dtype=np.int64))
            segments.append(_segment(used, path, shared, device))
        used += len(fresh)
    return Layout(
        input_ids=torch.from_numpy(np.concatenate(ids)).unsqueeze(0).to(device),
        position_ids=torch.from_numpy(np.concatenate(positions)).unsqueeze(0).to(device),
        segments=tuple(segments),
        rows=tuple(rows),
        unshared_tokens=sum(map(len, arrays)),
    )


def _segment(start: int, path: Ids, shared: int, device: torch.device | None) -> Segment:
    fresh = len(path) - shared
    if not shared:
        return Segment(start, start + fresh, None, None)
    mask = torch.ones(fresh, len(path), dtype=torch.bool, device=device).tril(shared)
    return Segment(start, start + fresh, torch.from_numpy(path).to(device), mask)


def plan_packs(sequences: Sequence[Sequence[int]], max_tokens: int) -> list[list[int]]:
    """Indices of the sequences of each pack. Sequences with a common prefix stay neighbours.

    A pack holds at most `max_tokens` tokens, counted without sharing, unless one sequence alone is longer.
    """
    packs: list[list[int]] = []
    room = 0
    for i in sorted(range(len(sequences)), key=lambda i: list(sequences[i])):
        if not packs or len(sequences[i]) > room:
            packs.append([])
            room = max_tokens
        packs[-1].append(i)
        room -= len(sequences[i])
    return packs


def packed_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    packed_layout: Layout | None = None,
    **_: object,
) -> tuple[Tensor, None]:
    """transformers' attention interface over a Layout. query [1, H, L, D], key and value [1, H_kv, L, D].

    Without a layout the whole row is one causal sequence (or, with a cache, what the mask given says).
    """
    gqa = key.shape[1] != query.shape[1]
    if packed_layout is None:
        causal = attention_mask is None and query.shape[2] > 1
        out = F.scaled_dot_product_attention(
            query, key, value, attn_mask=attention_mask, is_causal=causal, scale=scaling, enable_gqa=gqa
        )
        return out.transpose(1, 2).contiguous(), None
    outs = []
    for s in packed_layout.segments:
        k = key[:, :, s.start : s.end] if s.path is None else key.index_select(2, s.path)
        v = value[:, :, s.start : s.end] if s.path is None else value.index_select(2, s.path)
        outs.append(
            F.scaled_dot_product_attention(
                query[:, :, s.start : s.end],
                k,
                v,
                attn_mask=s.mask,
                is_causal=s.path is None,
                scale=scaling,
                enable_gqa=gqa,
            )
        )
    return torch.cat(outs, dim=2).transpose(1, 2).contiguous(), None


AttentionInterface.register(ATTENTION, packed_attention)
