"""From hidden states to per-token statistics without ever holding all logits.

The language-model head is applied to `chunk_rows` rows at a time. For each chunk the loss and its gradient with
respect to the hidden states (and to the head, if it trains) are computed at once, so that the logits of one chunk
are freed before the next: memory is O(chunk_rows * V), not O(N * V), and the head runs once forward and once
backward, as in the naive form. The idea is that of fused linear losses (Liger Kernel, Hsu et al. 2024).

Shapes: N rows (tokens), D hidden size, V vocabulary, C = chunk_rows, K candidates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

Head = Callable[[Tensor], Tensor]  # [C, D] -> logits [C, V]
# Loss of some rows from their logits: (logits [C, V], rows) -> (scalar, additive parts).
RowsLoss = Callable[[Tensor, slice], tuple[Tensor, dict[str, Tensor]]]


def chunks(rows: int, size: int) -> Iterator[slice]:
    """Consecutive slices that cover `rows`, each at most `size` long."""
    return (slice(start, min(start + size, rows)) for start in range(0, rows, size))


class _TokenStats(torch.autograd.Function):
    """logits [C, V] -> log pi(target) [C], log pi(candidates) [C, K], KL(pi || base) [C], entropy [C].

    The gradient is written down instead of traced: with p = softmax(logits), l = log p, q the base's log-softmax,
        d/dlogits = onehot(target) g + onehot(candidates) g_c - p (g + sum g_c) + g_kl p (l - q - KL).
    Buffers of size C * V are reused in place; the logits are overwritten. Entropy carries no gradient.
    """

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, base_logits: Tensor | None, target: Tensor, candidates: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        logp = _log_softmax_(wide(logits.detach()))
        p = logp.exp()
        entropy = -torch.linalg.vecdot(p, logp)
        target_logp = logp.gather(1, target.unsqueeze(1)).squeeze(1)
        candidate_logp = logp.gather(1, candidates)
        if base_logits is None:
            gap, kl = None, torch.zeros_like(entropy)
        else:
            gap = torch.sub(logp, _log_softmax_(wide(base_logits.detach())), out=logp)
            kl = torch.linalg.vecdot(p, gap)
        ctx.save_for_backward(p, gap, kl, target, candidates)
        ctx.dtype = logits.dtype
        ctx.mark_non_differentiable(entropy)
        return target_logp, candidate_logp, kl, entropy

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        g, g_candidates, g_kl, _ = grads
        p, gap, kl, target, candidates = ctx.saved_tensors
        pull = -(g + g_candidates.sum(1)).unsqueeze(1)
        out = p.mul_(pull) if gap is None else gap.sub_(kl.unsqueeze(1)).mul_(g_kl.unsqueeze(1)).add_(pull).mul_(p)
        out.scatter_add_(1, target.unsqueeze(1), g.unsqueeze(1))
        out.scatter_add_(1, candidates, g_candidates)
        return out.to(ctx.dtype), None, None, None


def wide(logits: Tensor) -> Tensor:
    """At least float32: a softmax over a vocabulary in bfloat16 would lose the small probabilities."""
    return logits if logits.dtype == torch.float64 else logits.float()


def _log_softmax_(logits: Tensor) -> Tensor:
    """log softmax over the last dimension, in place."""
    return logits.sub_(logits.logsumexp(-1, keepdim=True))


def token_stats(
    logits: Tensor, base_logits: Tensor | None, target: Tensor, candidates: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """log pi(target) [C], log pi(candidates) [C, K], KL(pi || base) [C] (0 without a base), entropy [C]; nats.

    `logits` [C, V] must be fresh: it is overwritten. `target` int64 [C], `candidates` int64 [C, K] inside [0, V).
    """
    out: tuple[Tensor, Tensor, Tensor, Tensor] = _TokenStats.apply(  # type: ignore[no-untyped-call]
        logits, base_logits, target, candidates
    )
    return out


class _ChunkedLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        head: Head,
        rows_loss: RowsLoss,
        chunk_rows: int,
        parts: dict[str, Tensor],
        *params: Tensor,
    ) -> Tensor:
        grad_hidden = torch.zeros_like(hidden)
        grad_params = [torch.zeros_like(p) for p in params]
        total = torch.zeros((), dtype=torch.promote_types(hidden.dtype, torch.float32), device=hidden.device)
        for rows in chunks(hidden.shape[0], chunk_rows):
            with torch.enable_grad():
                part = hidden[rows].detach().requires_grad_()
                loss, extra = rows_loss(head(part), rows)
            for into, grad in zip(
                [grad_hidden[rows], *grad_params], torch.autograd.grad(loss, [part, *params]), strict=True
            ):
                into += grad
            total += loss.detach()
            for name, value in extra.items():
                parts[name] = parts[name] + value.detach() if name in parts else value.detach()
        ctx.save_for_backward(grad_hidden, *grad_params)
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        grad_hidden, *grad_params = ctx.saved_tensors
        return grad_hidden * grad, None, None, None, None, *(g * grad for g in grad_params)


def chunked_loss(
    hidden: Tensor, head: Head, params: list[Tensor], rows_loss: RowsLoss, chunk_rows: int
) -> tuple[Tensor, dict[str, Tensor]]:
    """Sum of `rows_loss` over chunks of `hidden` [N, D], differentiable in `hidden` and in the head's `params`.

    `rows_loss` must be additive over rows. Returns the loss (scalar) and the summed parts, without gradient.
    """
    parts: dict[str, Tensor] = {}
    loss: Tensor = _ChunkedLoss.apply(  # type: ignore[no-untyped-call]
        hidden, head, rows_loss, chunk_rows, parts, *params
    )
    return loss, parts
