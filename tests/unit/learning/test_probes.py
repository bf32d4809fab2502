"""What the gate and the guard call a collapse, and that they say so when they cannot tell."""

from __future__ import annotations

import msgspec
import pytest

from libs.learning.guard import GuardLimits, reply_metrics, verdict
from libs.learning.probes import PROBES, Answer, GateLimits, compare, flaws, is_refusal, repetition

LIMITS = GateLimits()
GOOD = Answer(
    text="The capital of France is Paris.",
    tokens=8,
    finished=True,
    repetition=0.0,
    refusal=False,
    base_logp=-0.5,
    kl=0.1,
)


def change(**values: object) -> Answer:
    return msgspec.structs.replace(GOOD, **values)


LOOP = change(text="of the of the of the of the of the", repetition=0.8, finished=False)


@pytest.mark.parametrize(
    ("text", "low", "high"),
    [
        ("The main type of plastic is plastic. " * 8, 0.8, 1.0),
        ("Plants make food from light, water and carbon dioxide.", 0.0, 0.0),
        ("啊" * 40, 0.9, 1.0),
        ("", 0.0, 0.0),
        ("Paris", 0.0, 0.0),
    ],
)
def test_repetition(text: str, low: float, high: float) -> None:
    assert low <= repetition(text) <= high


@pytest.mark.parametrize(
    ("text", "refused"),
    [
        ("I'm sorry, but I can't help with that.", True),
        ("As an AI, I have no opinion.", True),
        ("К сожалению, я не могу помочь с этим.", True),
        ("抱歉，我无法回答这个问题。", True),
        ("I can help: add two eggs.", False),
        ("Sorry is a hard word to say.", False),
    ],
)
def test_refusals(text: str, refused: bool) -> None:
    assert is_refusal(text) is refused


def test_probes_tell_nothing_of_what_is_wanted() -> None:
    for word in ("list", "bullet", "bold", "prose", "paragraph", "heading", "format", "short", "concise"):
        assert not any(word in p.lower() for p in PROBES)


def test_equal_answers_pass() -> None:
    result = compare([GOOD] * 6, [GOOD] * 6, [GOOD] * 6, LIMITS)
    assert (result.passed, result.signal, result.reason) == (True, True, "")


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (LOOP, "gate_"),
        (change(text="", tokens=1), "gate_empty"),
        (change(finished=False), "gate_endless"),
        (change(refusal=True), "gate_refusal"),
        (change(base_logp=-4.0), "gate_absurd"),
    ],
)
def test_more_than_a_third_newly_bad_is_held(bad: Answer, reason: str) -> None:
    two = compare([bad] * 2 + [GOOD] * 4, [GOOD] * 6, [GOOD] * 6, LIMITS)
    assert two.passed and two.metrics["gate_newly_failed_share"] == pytest.approx(1 / 3)
    three = compare([bad] * 3 + [GOOD] * 3, [GOOD] * 6, [GOOD] * 6, LIMITS)
    assert not three.passed and three.reason.startswith(reason)


def test_small_losses_do_not_add_up_unseen() -> None:
    serving = [LOOP] * 3 + [GOOD] * 3
    most = [LOOP] * 4 + [GOOD] * 2
    assert compare(most, most, [GOOD] * 6, LIMITS).passed  # no worse than what serves: not held
    worse = compare([LOOP] * 4 + [GOOD] * 2, serving, [GOOD] * 6, LIMITS)
    assert not worse.passed and "4 of 6 probes fail, 3 did before" in worse.reason


def test_far_from_the_base_is_held() -> None:
    result = compare([change(kl=4.0)] * 6, [GOOD] * 6, [GOOD] * 6, LIMITS)
    assert not result.passed and result.reason.startswith("gate_kl")


def test_a_better_release_than_the_serving_one_passes() -> None:
    assert compare([GOOD] * 6, [LOOP] * 6, [GOOD] * 6, LIMITS).passed


def test_without_a_telling_probe_the_gate_says_so() -> None:
    result = compare([LOOP] * 6, [LOOP] * 6, [change(finished=False)] * 6, LIMITS)
    assert (result.passed, result.signal, result.reason) == (True, False, "gate_no_signal")
    assert result.metrics["gate_probes_telling"] == 0


def test_flaws_are_named() -> None:
    assert flaws(LOOP, LIMITS) == ["repetition", "endless"]
    assert flaws(GOOD, LIMITS) == []


@pytest.mark.parametrize(
    ("metrics", "reason"),
    [
        ({"entropy": 1.5, "loss_kl": 0.1, "reply_looping": 0.0}, None),
        ({"entropy": 0.001}, "guard_entropy"),
        ({"entropy": 9.0}, "guard_entropy"),
        ({"entropy": 1.5, "loss_kl": 7.0}, "guard_kl"),
        ({"entropy": 1.5, "reply_looping": 0.75}, "guard_repetition"),
        ({}, None),
    ],
)
def test_guard(metrics: dict[str, float], reason: str | None) -> None:
    found = verdict(metrics, GuardLimits())
    assert found is None if reason is None else (found or "").startswith(reason)


def test_reply_metrics() -> None:
    loop = "the same words again and " * 6
    seen = reply_metrics([loop, "All is well here."], [30, 5], GuardLimits())
    assert seen["reply_tokens"] == 17.5 and seen["reply_looping"] == 0.5 and 0.3 < seen["reply_repetition"] < 0.5


@pytest.mark.parametrize("broken", [{"kl": float("nan")}, {"base_logp": float("nan")}])
def test_what_cannot_be_measured_does_not_pass(broken: dict[str, object]) -> None:
    result = compare([change(**broken)] * 2, [GOOD] * 2, [GOOD] * 2, LIMITS)
    assert not result.passed
