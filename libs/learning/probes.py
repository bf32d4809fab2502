"""Pinned probe prompts, what is measured on their answers, and the comparison that holds a collapsed release back.

A probe is an ordinary short request. It never says what a scenario's person wants: the gate must not reward a release
for following the probe, and must not depend on anybody's taste. It looks for collapse only: loops, empty or endless
answers, refusals, words that the base finds absurd, and a distribution far from the base's.

A probe on which the base itself fails says nothing about a release. When no probe is left, the gate says that it has
no signal and lets the release pass. A candidate is held when it newly fails too many probes that the serving release
passes, and also when it fails most of them and more than the serving one: many small losses must not add up unseen.
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
    """`max_failed` and `max_failed_total` are shares of the telling probes; the others are per token or answer."""

    max_failed: float = 0.34  # newly, against the serving release
    max_failed_total: float = 0.5  # altogether, if that is more than the serving release fails
    max_repetition: float = 0.5
    max_kl: float = 3.0
    max_logp_loss: float = 2.0  # nats per token below the base's
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


def compare(
    candidate: Sequence[Answer], serving: Sequence[Answer], base: Sequence[Answer], limits: GateLimits
) -> GateResult:
    """Whether the candidate may serve. The lists follow the same probes."""
    metrics = {f"gate_{k}": v for k, v in _means(candidate).items()}
    metrics |= {f"gate_serving_{k}": v for k, v in _means(serving).items()}
    telling = [i for i, answer in enumerate(base) if not flaws(answer, limits)]
    metrics["gate_probes_telling"] = float(len(telling))
    if not telling:
        return GateResult(passed=True, signal=False, reason="gate_no_signal", metrics=metrics)
    now = {i: p for i in telling if (p := _problems(candidate[i], base[i], limits))}
    before = {i for i in telling if _problems(serving[i], base[i], limits)}
    newly = {i: p for i, p in now.items() if i not in before}
    kl = sum(candidate[i].kl for i in telling) / len(telling)
    metrics["gate_failed_share"] = len(now) / len(telling)
    metrics["gate_newly_failed_share"] = len(newly) / len(telling)
    reason = ""
    if not kl <= limits.max_kl:  # NaN, of weights that are none, does not pass
        reason = f"gate_kl: {kl:.2f} nats per token from the base"
    elif len(newly) / len(telling) > limits.max_failed:
        reason = f"gate_{_commonest(newly)}: {len(newly)} of {len(telling)} probes newly fail"
    elif len(now) / len(telling) > limits.max_failed_total and len(now) > len(before):
        reason = f"gate_{_commonest(now)}: {len(now)} of {len(telling)} probes fail, {len(before)} did before"
    return GateResult(passed=not reason, signal=True, reason=reason, metrics=metrics)


def _problems(answer: Answer, base: Answer, limits: GateLimits) -> list[str]:
    found = flaws(answer, limits)
    if not answer.base_logp >= base.base_logp - limits.max_logp_loss:
        found.append("absurd")
    return found


def _commonest(failed: dict[int, list[str]]) -> str:
    named = [problem for problems in failed.values() for problem in problems]
    return max(sorted(set(named)), key=named.count)


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
