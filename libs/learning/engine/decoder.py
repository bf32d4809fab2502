"""One forward pass over mixed rows: decoding sequences (a row each) and pieces of prompts (a row per token).

All rows share the matrix products; rows of one adapter lie together, so each adapter is one product over a slice.
Attention runs per pool for the decoding rows and per prompt for the others. Grouped-query heads enter attention as
queries of the shared head, so keys and values are never repeated in memory.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from libs.learning.engine.cache import Pool
from libs.learning.engine.lora import Delta, Lora
from libs.learning.engine.weights import Layer, ModelShape, Weights


@dataclass(frozen=True, slots=True)
class Decoding:
    """The decoding rows of one pool: slot s of the pool has its new token in row `rows[i]` where slots[i] = s."""

    pool: Pool
    slots: Tensor  # int64 [n]
    rows: Tensor  # int64 [n]
    positions: Tensor  # int64 [n], position of the new token = tokens already in the slot


@dataclass(frozen=True, slots=True)
class Prefill:
    """Rows [start, stop) are tokens [offset, offset + stop - start) of the sequence in `slot`."""

    pool: Pool
    slot: int
    start: int
    stop: int
    offset: int


@dataclass(frozen=True, slots=True)
class Plan:
    """What one forward pass computes. `adapters` lists (start, stop, adapter) over the rows; gaps have none."""

    tokens: Tensor  # int64 [rows]
    positions: Tensor  # int64 [rows]
    adapters: list[tuple[int, int, Lora]]
    decoding: list[Decoding]
    prefill: list[Prefill]
    logit_rows: Tensor  # int64 [N]: rows whose next-token distribution is wanted


@dataclass(slots=True)
class _PoolView:
    """Per step, the same for every layer: where new keys and values go and what each query may see."""

    part: Decoding
    high: int
    span: int  # tokens that attention reads, a multiple of 32
    targets: Tensor  # int64 [n * 2 * kv_heads], rows of one layer's cache flattened to [.., head_dim]
    mask: Tensor  # [high, 1, 1, span], 0 or -inf
    queries: Tensor  # int64 [high]: row of each slot's query; row 0 where the slot does not decode
    layers: Tensor = field(init=False)  # the pool's data, flattened per layer

    @classmethod
    def of(cls, part: Decoding, shape: ModelShape, dtype: torch.dtype) -> _PoolView:
        pool, device = part.pool, part.rows.device
        high = int(part.slots.max()) + 1
        span = min(-(-(int(part.positions.max()) + 1) // 32) * 32, pool.capacity)
        heads = torch.arange(shape.kv_heads, device=device)
        kinds = torch.arange(2, device=device)
        slot_head = (kinds[None, :, None] * pool.slots + part.slots[:, None, None]) * shape.kv_heads + heads
        targets = slot_head * pool.capacity + part.positions[:, None, None]
        last = torch.zeros(high, dtype=torch.int64, device=device)
        last[part.slots] = part.positions
        mask = torch.zeros(high, span, dtype=dtype, device=device)
        mask.masked_fill_(torch.arange(span, device=device) > last[:, None], float("-inf"))
        queries = torch.zeros(high, dtype=torch.int64, device=device)
        queries[part.slots] = part.rows
        view = cls(part, high, span, targets.flatten(), mask[:, None, None, :], queries)
        view.layers = pool.data.view(shape.layers, -1, shape.head_dim)
        return view


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None, name: str, layer: int, plan: Plan) -> Tensor:
    out = F.linear(x, weight, bias)
    for start, stop, lora in plan.adapters:
        delta: Delta | None = lora.layers[layer][name]
        if delta is not None:
            out[start:stop].addmm_(x[start:stop] @ delta.a, delta.b)
    return out


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of [rows, heads, head_dim] with cos, sin [rows, 1, head_dim]."""
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return x * cos + turned * sin


class Decoder:
    """The forward pass over one set of base weights. Holds no state of its own: keys and values live in pools."""

    def __init__(self, weights: Weights) -> None:
        self.weights = weights

    @torch.inference_mode()
    def forward(self, plan: Plan) -> Tensor:
        """Float32 logits [N, vocab] of `plan.logit_rows`; writes the rows' keys and values into their pools."""
        w, s = self.weights, self.weights.shape
        cos, sin = w.cos[plan.positions].unsqueeze(1), w.sin[plan.positions].unsqueeze(1)
        views = [_PoolView.of(part, s, w.dtype) for part in plan.decoding]
        masks = [_prefill_mask(part, w) for part in plan.prefill]
        h = w.embed[plan.tokens]
        for index, layer in enumerate(w.layers):
            x = F.rms_norm(h, (s.hidden,), layer.input_norm, s.norm_eps)
            heads = self._project(x, layer, index, plan, cos, sin)
            attended = self._attend(heads, index, plan, views, masks)
            h += _linear(attended, layer.o, None, "o", index, plan)
            x = F.rms_norm(h, (s.hidden,), layer.post_norm, s.norm_eps)
            gate_up = _linear(x, layer.gate_up, None, "gate_up", index, plan)
            x = F.silu(gate_up[:, : s.intermediate]).mul_(gate_up[:, s.intermediate :])
            h += _linear(x, layer.down, None, "down", index, plan)
        last = F.rms_norm(h[plan.logit_rows], (s.hidden,), w.norm, s.norm_eps)
        return _logits(last, w.head)

    def _project(self, x: Tensor, layer: Layer, index: int, plan: Plan, cos: Tensor, sin: Tensor) -> Tensor:
        """Query, key and value heads [rows, heads + 2 * kv_heads, head_dim], rotated where they must be."""
        s = self.weights.shape
        qkv = _linear(x, layer.qkv, layer.qkv_bias, "qkv", index, plan)
        heads = qkv.view(len(x), s.heads + 2 * s.kv_heads, s.head_dim)
        turn = heads[:, : s.heads + s.kv_heads]
        if layer.q_norm is not None and layer.k_norm is not None:
            q = F.rms_norm(turn[:, : s.heads], (s.head_dim,), layer.q_norm, s.norm_eps)
            k = F.rms_norm(turn[:, s.heads :], (s.head_dim,), layer.k_norm, s.norm_eps)
            turn = torch.cat((q, k), dim=1)
        heads[:, : s.heads + s.kv_heads] = _rotate(turn, cos, sin)
        return heads

    def _attend(
        self, heads: Tensor, index: int, plan: Plan, views: list[_PoolView], masks: list[Tensor | None]
    ) -> Tensor:
        s = self.weights.shape
        out = torch.empty(len(heads), s.q_size, dtype=heads.dtype, device=heads.device)
        for view in views:
            part = view.part
            new = heads[part.rows, s.heads :]  # [n, 2 * kv_heads, head_dim]
            view.layers[index].index_copy_(0, view.targets, new.reshape(-1, s.head_dim))
            q = heads[view.queries, : s.heads].view(view.high, s.kv_heads, -1, s.head_dim)
            kv = part.pool.data[index, :, : view.high, :, : view.span]
            seen = F.scaled_dot_product_attention(q, kv[0], kv[1], attn_mask=view.mask)
            out[part.rows] = seen.reshape(view.high, s.q_size)[part.slots]
        for piece, mask in zip(plan.prefill, masks, strict=True):
            end = piece.offset + piece.stop - piece.start
            rows = heads[piece.start : piece.stop]
            cache = piece.pool.data[index, :, piece.slot]  # [2, kv_heads, capacity, head_dim]
            new = rows[:, s.heads :].view(len(rows), 2, s.kv_heads, s.head_dim)
            cache[:, :, piece.offset : end] = new.permute(1, 2, 0, 3)
            q = rows[:, : s.heads].transpose(0, 1).unsqueeze(0)
            kv = cache[:, None, :, :end]
            seen = F.scaled_dot_product_attention(
                q, kv[0], kv[1], attn_mask=mask, is_causal=mask is None, enable_gqa=s.heads != s.kv_heads
            )
            out[piece.start : piece.stop] = seen[0].transpose(0, 1).reshape(piece.stop - piece.start, s.q_size)
        return out


def _prefill_mask(piece: Prefill, weights: Weights) -> Tensor | None:
    """None for a whole beginning (plain causal), else [rows, offset + rows] with 0 or -inf."""
    if piece.offset == 0:
        return None
    rows = piece.stop - piece.start
    full = torch.full((rows, piece.offset + rows), float("-inf"), dtype=weights.dtype, device=weights.device)
    return full.triu_(piece.offset + 1)


def _logits(last: Tensor, head: Tensor) -> Tensor:
    """[N, vocab] in float32. For a few rows head @ x^T reads the large matrix about twice as fast on a CPU."""
    if len(last) > 1 and last.device.type == "cpu":
        return torch.mm(head, last.t()).t().contiguous().float()
    return F.linear(last, head).float()
