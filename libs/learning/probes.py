"""Pinned probe prompts, what is measured on their answers, and the comparison that holds a collapsed release back.

A probe is an ordinary short request. It never says what a scenario's person wants: the gate must not reward a release
for following the probe, and must not depend on anybody's taste. It looks for collapse only: loops, empty or endless
answers, refusals, words that the base finds absurd, and a distribution far from the base's.

A probe on which the serving release itself fails says nothing about the candidate. When no probe is left, the gate
says that it has no signal and lets the release pass.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

# Short questions that SmolLM2-135M-Instruct answers in at most 40 tokens and ends by itself.
PROBES = (
    "What is the capital of France?",
    "How many days are there in a week?",
    "Write one sentence about a dog.",
    "Which planet is closest to the sun?",
    "What is the chemical symbol for gold?",
    "Thanks for your help.",
)
_REFUSAL = re.compile(
    r"\bI(?:'m| am) (?:sorry|unable|not able)\b|\bI (?:cannot|can't|won't) (?:help|assist|answer|provide|comply)"
    r"|\bas an AI\b|\bне могу (?:помочь|ответить)\b|\bне в состоянии\b|\bno puedo (?:ayudar|responder)\b"
    r"|\bje ne peux pas (?:vous )?(?:aider|répondre)\b|\bich kann (?:dabei|dir|Ihnen) nicht\b|无法(?:回答|帮助|提供)",
    re.IGNORECASE,
)


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """One probe's answer. Log-probabilities and KL in nats per token."""

    text: str
    tokens: int
    finished: bool  # it ended by itself
    repetition: float  # 0: no word trigram twice, 1: nothing but repeats
    refusal: bool
    base_logp: float  # mean log-probability under the base: how sane the base finds the answer
    kl: float  # mean KL(candidate || base) along the answer


@dataclass(frozen=True, slots=True)
class GateLimits:
    """`max_failed` is a share of the probes that say something; the others are per token or per answer."""

    max_failed: float = 0.34
    max_repetition: float = 0.5
    max_kl: float = 3.0
    max_logp_loss: float = 2.0  # nats per token below the serving release's
    min_words: int = 1


class GateResult(msgspec.Struct, frozen=True, kw_only=True):
    """`signal` False: no probe could tell, and the release passed for that reason."""

    passed: bool
    signal: bool
    reason: str
    metrics: dict[str, float]


def repetition(text: str) -> float:
    """Share of word trigrams that occurred before; of characters in threes for text without spaces."""
    units: Sequence[str] = text.split()
    if len(units) <= 3:
        units = [c for c in text if not c.isspace()]
    grams = [tuple(units[i : i + 3]) for i in range(len(units) - 2)]
    return 1.0 - len(set(grams)) / len(grams) if grams else 0.0


def is_refusal(text: str) -> bool:
    return _REFUSAL.search(text) is not None


def flaws(answer: Answer, limits: GateLimits) -> list[str]:
    """What is wrong with an answer taken by itself."""
    found = []
    if len(answer.text.split()) < limits.min_words:
        found.append("empty")
    if answer.repetition > limits.max_repetition:
        found.append("repetition")
    if not answer.finished:
        found.append("endless")
    if answer.refusal:
        found.append("refusal")
    return found


def compare(candidate: Sequence[Answer], serving: Sequence[Answer], limits: GateLimits) -> GateResult:
    """Whether the candidate may serve. Both lists follow the same probes."""
    metrics = {f"gate_{k}": v for k, v in _means(candidate).items()}
    metrics |= {f"gate_serving_{k}": v for k, v in _means(serving).items()}
    telling = [(c, s) for c, s in zip(candidate, serving, strict=True) if not flaws(s, limits)]
    metrics["gate_probes_telling"] = float(len(telling))
    if not telling:
        return GateResult(passed=True, signal=False, reason="gate_no_signal", metrics=metrics)
    failed = [problems for c, s in telling if (problems := _problems(c, s, limits))]
    metrics["gate_failed_share"] = len(failed) / len(telling)
    kl = sum(c.kl for c, _ in telling) / len(telling)
    if kl > limits.max_kl:
        return GateResult(passed=False, signal=True, reason=f"gate_kl: {kl:.2f} nats per token", metrics=metrics)
    if metrics["gate_failed_share"] > limits.max_failed:
        named = [p for problems in failed for p in problems]
        worst = max(sorted(set(named)), key=named.count)
        reason = f"gate_{worst}: {len(failed)} of {len(telling)} probes fail"
        return GateResult(passed=False, signal=True, reason=reason, metrics=metrics)
    return GateResult(passed=True, signal=True, reason="", metrics=metrics)


def _problems(candidate: Answer, serving: Answer, limits: GateLimits) -> list[str]:
    found = flaws(candidate, limits)
    if candidate.base_logp < serving.base_logp - limits.max_logp_loss:
        found.append("absurd")
    return found


def _means(answers: Sequence[Answer]) -> dict[str, float]:
    n = max(len(answers), 1)
    return {
        "tokens": sum(a.tokens for a in answers) / n,
        "unfinished": sum(not a.finished for a in answers) / n,
        "repetition": sum(a.repetition for a in answers) / n,
        "refusals": sum(a.refusal for a in answers) / n,
        "base_logp": sum(a.base_logp for a in answers) / n,
        "kl": sum(a.kl for a in answers) / n,
    }
