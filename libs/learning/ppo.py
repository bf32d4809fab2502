"""PPO's clipped surrogate, per element (Schulman et al. 2017, eq. 7; two-sided clip as in DAPO, Yu et al. 2025).

    r     = exp(log pi - log pi_old)
    L     = -min(r * A, clip(r, 1 - clip_low, 1 + clip_high) * A)

Shapes: every tensor broadcasts to the same shape, [N] for sampled tokens or [N, K] for candidates. Log-probabilities
are natural logs of the full-vocabulary softmax. With one optimizer step per batch r is 1 at the step and the clip
does not act; it bounds the update when the old log-probabilities are given from elsewhere.
"""

from __future__ import annotations

import torch
from torch import Tensor

# exp(20) is finite in float32, and a ratio that large is clipped anyway; beyond it exp would overflow to inf.
MAX_LOG_RATIO = 20.0


def ratio(logp: Tensor, old_logp: Tensor) -> Tensor:
    """pi / pi_old from log-probabilities of equal shape; the log-ratio is held within +-MAX_LOG_RATIO."""
    return (logp - old_logp).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


def clipped_surrogate(
    logp: Tensor, old_logp: Tensor, advantage: Tensor, clip_low: float, clip_high: float
) -> tuple[Tensor, Tensor]:
    """The loss per element, and 1.0 where the clip acts, both of the broadcast shape. Minimise the loss.

    `old_logp` and `advantage` carry no gradient.
    """
    old_logp, advantage = old_logp.detach(), advantage.detach()
    r = ratio(logp, old_logp)
    plain = -r * advantage
    clipped = -r.clamp(1.0 - clip_low, 1.0 + clip_high) * advantage
    return torch.maximum(plain, clipped), (clipped > plain).detach().to(r.dtype)
