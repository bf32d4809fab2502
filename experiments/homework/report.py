"""What a run leaves behind: summary.json, table.md and the learning curve. Pure but for the three files it writes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.homework.scoring import degenerate, words
from experiments.homework.sessions import SessionResult, Shape
from experiments.homework.stats import likeness
from experiments.homework.watch import Facts

ADAPTED_GAIN = 0.3  # held-out pass rate above the base's that counts as adapted
RECENT = 8  # sessions in the moving average of the curve


def pass_rate(results: Sequence[SessionResult]) -> float | None:
    """Share of first replies that passed, null without any."""
    return sum(r.passed for r in results) / len(results) if results else None


def three_in_a_row(results: Sequence[SessionResult]) -> int | None:
    """The number (from 1) of the session with which three first replies in a row had passed, or None."""
    streak = 0
    for result in sorted(results, key=lambda r: r.number):
        streak = streak + 1 if result.passed else 0
        if streak == 3:
            return result.number
    return None


def summarize(
    *,
    seed: int,
    shape: Shape,
    ttl_seconds: float,
    sessions: Sequence[SessionResult],
    base: dict[str, list[SessionResult]],
    final: dict[str, list[SessionResult]],
    facts: Facts,
    wall_seconds: float,
    finished: bool,
) -> dict[str, Any]:
    """The run as one flat document. Rates are null where nothing was measured."""
    counts = facts.counts(ttl_seconds)
    streak = three_in_a_row(sessions)
    sent = sum(r.answers_sent for r in sessions)
    steps = facts.steps
    rates = {
        f"{when}_{which}_pass_rate": pass_rate(results.get(which, []))
        for when, results in (("base", base), ("final", final))
        for which in ("heldout", "stream")
    }
    return {
        "seed": seed,
        **rates,
        "adapted": adapted(rates),
        "finished": finished,
        "first_three_in_a_row_session": streak,
        "steps_before_three_in_a_row": _steps_before(streak, sessions, facts),
        "sessions": len(sessions),
        "optimizer_steps": len(steps),
        "turns_trained": facts.trained,
        "turns_left_for_the_next_batch": facts.waiting,
        "turns_too_old_to_train": facts.stale,
        "match_rate": counts.match_rate,
        "signal_rate": counts.signal_rate,
        "answers_sent": sent,
        "answers_bound": counts.matched,
        "main_turns": counts.turns,
        "answerable_turns": counts.answerable,
        "turns_with_a_trained_step": counts.trained,
        "binding_rules": counts.rules,
        "exchange_classes": facts.classes,
        "exchange_reasons": facts.reasons,
        "unmatched_reasons": counts.unmatched,
        "no_signal_reasons": counts.no_signal,
        "expired_turns": counts.expired,
        "releases": _events(facts),
        "serving": facts.serving,
        "step_losses": [step.metrics.get("loss") for step in steps],
        "client": _client(shape, ttl_seconds),
        "drift": drift(base.get("unrelated", []), final.get("unrelated", [])),
        "prompt_tokens": sum(r.prompt_tokens for r in sessions),
        "completion_tokens": sum(r.completion_tokens for r in sessions),
        "wall_seconds": round(wall_seconds, 1),
    }


def _client(shape: Shape, ttl_seconds: float) -> dict[str, Any]:
    return {
        "tagged": shape.tagged,
        "window": shape.window,
        "compact": shape.compact,
        "ttl_seconds": ttl_seconds,
        "think_seconds": shape.think_seconds,
    }


def drift(before: Sequence[SessionResult], after: Sequence[SessionResult]) -> dict[str, float] | None:
    """How far greedy answers to unrelated questions moved: likeness (0 to 1), degenerate share and mean words."""
    if not before or len(before) != len(after):
        return None
    texts = [(b.first_reply, a.first_reply) for b, a in zip(before, after, strict=True)]
    n = len(texts)
    return {
        "likeness": sum(likeness(b, a) for b, a in texts) / n,
        "degenerate_before": sum(degenerate(b, min_words=1) is not None for b, _ in texts) / n,
        "degenerate_after": sum(degenerate(a, min_words=1) is not None for _, a in texts) / n,
        "words_before": sum(len(words(b)) for b, _ in texts) / n,
        "words_after": sum(len(words(a)) for _, a in texts) / n,
    }


def adapted(rates: dict[str, float | None]) -> bool | None:
    """Whether the held-out pass rate rose by at least ADAPTED_GAIN; None when it was not measured both times."""
    before, after = rates["base_heldout_pass_rate"], rates["final_heldout_pass_rate"]
    return None if before is None or after is None else after - before >= ADAPTED_GAIN


def _steps_before(streak: int | None, sessions: Sequence[SessionResult], facts: Facts) -> int | None:
    """Optimizer steps that made the release which served the session that completed the streak."""
    if streak is None:
        return None
    release = next(r.release_id for r in sessions if r.number == streak)
    made = {event.release_id: event.step for event in facts.steps}
    return made.get(release, 0)


def _events(facts: Facts) -> dict[str, int]:
    tally: dict[str, int] = {}
    for event in facts.events.values():
        label = event.event if not event.reason or event.event == "released" else f"{event.event}: {event.reason}"
        tally[label] = tally.get(label, 0) + 1
    return tally


def verdict(summary: dict[str, Any]) -> str:
    """One sentence that says plainly whether the policy adapted."""
    before, after = summary["base_heldout_pass_rate"], summary["final_heldout_pass_rate"]
    if summary["adapted"] is None:
        return "The run was stopped before the held-out questions could be asked again."
    figures = (
        f"held-out first replies passed {before:.2f} before and {after:.2f} after {summary['optimizer_steps']} steps"
    )
    if summary["adapted"]:
        return f"The policy adapted: {figures}."
    return f"The policy did NOT adapt (a gain of {ADAPTED_GAIN} counts): {figures}. {_likely_cause(summary)}"


def _likely_cause(summary: dict[str, Any]) -> str:
    if summary["answers_sent"] and summary["answers_bound"] < 0.5 * summary["answers_sent"]:
        reasons = ", ".join(f"{n} {reason}" for reason, n in summary["exchange_reasons"].items() if reason != "matched")
        return (
            f"Only {summary['answers_bound']} of {summary['answers_sent']} answers were bound to a reply ({reasons}): "
            "what is not bound cannot train."
        )
    if not summary["optimizer_steps"]:
        return "No optimizer step was made; `clawback status` shows the stage at which the turns stopped."
    return "Steps were made; see step losses and the table for what changed."


def table(summary: dict[str, Any]) -> str:
    """summary.json as a Markdown page for people."""
    rows = [
        ("", "base", "final"),
        ("held-out questions, first reply passes", *_pair(summary, "heldout")),
        ("stream questions, first reply passes", *_pair(summary, "stream")),
    ]
    lines = ["# Homework run", "", verdict(summary), ""]
    lines += ["| " + " | ".join(rows[0]) + " |", "|---|---|---|"]
    lines += ["| " + " | ".join(row) + " |" for row in rows[1:]]
    lines += ["", "| figure | value |", "|---|---|"]
    for name in (
        "seed", "sessions", "first_three_in_a_row_session", "steps_before_three_in_a_row", "optimizer_steps",
        "turns_trained", "turns_left_for_the_next_batch", "turns_too_old_to_train", "match_rate",
        "signal_rate", "answers_sent", "answers_bound", "wall_seconds",
    ):  # fmt: skip
        lines.append(f"| {name.replace('_', ' ')} | {_show(summary[name])} |")
    for name in (
        "binding_rules", "exchange_classes", "exchange_reasons", "unmatched_reasons", "no_signal_reasons", "releases",
    ):  # fmt: skip
        cells = ", ".join(f"{key} {n}" for key, n in summary[name].items()) or "none"
        lines.append(f"| {name.replace('_', ' ')} | {cells} |")
    return "\n".join(lines) + "\n"


def _pair(summary: dict[str, Any], which: str) -> tuple[str, str]:
    return _show(summary[f"base_{which}_pass_rate"]), _show(summary[f"final_{which}_pass_rate"])


def _show(value: object) -> str:
    if value is None:
        return "–"
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def curve(sessions: Sequence[SessionResult], summary: dict[str, Any], path: Path) -> None:
    """Draw first-reply passes by session with their moving average, held-out rates as lines, steps as marks."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    ordered = sorted(sessions, key=lambda r: r.number)
    x = [r.number for r in ordered]
    y = [float(r.passed) for r in ordered]
    mean = [sum(y[max(0, i + 1 - RECENT) : i + 1]) / len(y[max(0, i + 1 - RECENT) : i + 1]) for i in range(len(y))]
    figure, axes = plt.subplots(figsize=(8, 4.2), layout="constrained")
    axes.scatter(x, y, s=22, color="#888888", label="first reply passed (1) or not (0)")
    axes.plot(x, mean, color="#0b6e99", linewidth=2, label=f"mean of the last {RECENT} sessions")
    for when, style in (("base", ":"), ("final", "--")):
        rate = summary[f"{when}_heldout_pass_rate"]
        if rate is not None:
            axes.axhline(rate, linestyle=style, color="#b3541e", linewidth=1.3, label=f"held-out, {when}: {rate:.2f}")
    releases = [r.release_id for r in ordered]
    changed = [x[i] - 0.5 for i in range(1, len(x)) if releases[i] != releases[i - 1]]
    for at in changed:
        axes.axvline(at, color="#cccccc", linewidth=0.8, zorder=0)
    axes.set(xlabel="session (grey lines: another release serves)", ylabel="first reply passes", ylim=(-0.08, 1.12))
    axes.legend(loc="center right", fontsize=8)
    axes.set_title(f"Homework stream, seed {summary['seed']}")
    figure.savefig(path, dpi=130)
    plt.close(figure)


def write(
    directory: Path,
    summary: dict[str, Any],
    sessions: Sequence[SessionResult],
    evaluations: dict[str, dict[str, list[SessionResult]]],
) -> None:
    """Write summary.json, table.md, learning_curve.png and every reply that was scored (replies.jsonl)."""
    (directory / "summary.json").write_text(json.dumps(summary, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    (directory / "table.md").write_text(table(summary), encoding="utf-8")
    if sessions:
        curve(sessions, summary, directory / "learning_curve.png")
    with (directory / "replies.jsonl").open("w", encoding="utf-8") as out:
        for when, which, results in [
            ("live", "stream", list(sessions)),
            *[(when, which, results) for when, parts in evaluations.items() for which, results in parts.items()],
        ]:
            for r in results:
                line = {
                    "when": when, "set": which, "number": r.number, "question": r.question, "reply": r.first_reply,
                    "whole": r.whole, "faults": r.faults, "passed": r.passed, "release_id": r.release_id,
                }  # fmt: skip
                out.write(json.dumps(line, ensure_ascii=False) + "\n")
