"""The collapse guard: looks at the policy that is about to be trained and refuses to train a collapsed one further.

It sees what the step measures anyway, before anything changes: the policy's entropy and its distance from the base on
its own replies, and how repetitive and long these replies are. The gate (probes.py) judges a release after its step;
the guard also protects when the gate is off.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from libs.learning.probes import repetition


@dataclass(frozen=True, slots=True)
class GuardLimits:
    """Entropy and KL in nats per token; repetition as a share of the batch's replies that loop."""

    min_entropy: float = 0.02
    max_entropy: float = 6.0
    max_kl: float = 5.0
    max_looping: float = 0.5
    looping_from: float = 0.5  # a reply loops when this share of its trigrams repeats


def reply_metrics(replies: Sequence[str], lengths: Sequence[int], limits: GuardLimits) -> dict[str, float]:
    """Repetition and length of a batch's replies (as served). `lengths` in tokens."""
    each = [repetition(r) for r in replies]
    return {
        "reply_tokens": sum(lengths) / len(lengths),
        "reply_repetition": sum(each) / len(each),
        "reply_looping": sum(r > limits.looping_from for r in each) / len(each),
    }


def verdict(metrics: dict[str, float], limits: GuardLimits) -> str | None:
    """Why the policy must not be trained further, or None. Reasons start with "guard_"."""
    entropy, kl = metrics.get("entropy"), metrics.get("loss_kl")
    if entropy is not None and entropy < limits.min_entropy:
        return f"guard_entropy: {entropy:.3f} is below {limits.min_entropy}; the policy says one thing only"
    if entropy is not None and entropy > limits.max_entropy:
        return f"guard_entropy: {entropy:.2f} is above {limits.max_entropy}; the policy says anything"
    if kl is not None and kl > limits.max_kl:
        return f"guard_kl: {kl:.2f} nats per token from the base, more than {limits.max_kl}"
    if metrics.get("reply_looping", 0.0) > limits.max_looping:
        return f"guard_repetition: {metrics['reply_looping']:.0%} of the served replies loop"
    return None
