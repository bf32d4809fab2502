"""Follow one turn through every topic, with times and verdict, to the step that used it."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import click

from libs.cli.say import say, say_json


@click.command("trace", help=__doc__)
@click.argument("turn_id")
@click.option("--json", "as_json", is_flag=True, help="the stages as JSON")
def command(turn_id: str, as_json: bool) -> None:
    stages = asyncio.run(_collect(turn_id))
    if not stages:
        raise click.ClickException(
            f"no topic names {turn_id}. `clawback tap exchanges.classified` lists the exchanges there are"
        )
    if as_json:
        say_json(stages)
        return
    start = stages[0]["at"]
    say(f"turn {turn_id}  scenario {stages[0]['scenario']}")
    for stage in stages:
        when = datetime.fromtimestamp(stage["at"], UTC).strftime("%H:%M:%S.%f")[:-3]
        say(f"  {when} {stage['at'] - start:+9.3f} s  {stage['topic']:21} {stage['what']}")


async def _collect(turn_id: str) -> list[dict[str, Any]]:
    from libs.cli.connect import settings
    from libs.contracts import TOPICS, DeadLetter, PolicyRelease
    from libs.streams.tap import tap, turns_of

    def keeps(record: Any) -> bool:
        return isinstance(record, (PolicyRelease, DeadLetter)) or turn_id in turns_of(record)

    used = settings()
    topics = [used.input_topic(topic) for topic in TOPICS]
    return stages_of(turn_id, [t.record async for t in tap(used, topics, where=keeps)])


def stages_of(turn_id: str, records: list[Any]) -> list[dict[str, Any]]:
    """What every topic says about a turn, in order of time. Repeated records show once."""
    from libs.contracts import TOPICS, DeadLetter, PolicyRelease, TrainingBatch

    feedback = {
        sample.feedback_id
        for record in records
        for sample in ([record] if hasattr(record, "feedback_id") else getattr(record, "samples", ()))
        if sample.turn_id == turn_id
    }
    found: dict[str, dict[str, Any]] = {}
    for record in records:
        match record:
            case PolicyRelease():
                stage = _release(record, feedback)
            case TrainingBatch():
                ids = [s.feedback_id for s in record.samples if s.feedback_id in feedback]
                size = len(record.samples)
                text = f"in batch {record.batch_id} with {size} turns"
                stage = _stage("training.batches", record.created_at, text, record.scenario) if ids else None
            case DeadLetter():
                stage = _letter(record, turn_id)
            case _:
                stage = _exchange(record, turn_id)
        if stage is not None:
            found.setdefault(stage["topic"] + stage["what"], stage)
    order = list(TOPICS)
    return sorted(found.values(), key=lambda s: (s["at"], order.index(s["topic"])))


def _stage(topic: str, at: float, what: str, scenario: str) -> dict[str, Any]:
    return {"topic": topic, "at": at, "what": what, "scenario": scenario}


def _exchange(record: Any, turn_id: str) -> dict[str, Any] | None:
    from libs.contracts import ExchangeClassified, TrafficRaw, TurnJudged, TurnMatched

    match record:
        case TrafficRaw() if record.exchange_id == turn_id:
            took = record.completed_at - record.received_at
            capture = "captured" if record.capture else "not captured"
            text = f"{record.path} {record.outcome} in {took:.2f} s by release {record.release_id}, {capture}"
            return _stage("traffic.raw", record.received_at, text, record.scenario)
        case ExchangeClassified() if record.exchange_id == turn_id:
            binding = (
                f"answers {record.turn_id} by {record.rule}" if record.turn_id else f"answers none: {record.reason}"
            )
            text = f"class {record.exchange_class}, session {record.session_id}, {binding}"
            return _stage("exchanges.classified", record.at, text, record.scenario)
        case ExchangeClassified() if record.turn_id == turn_id:
            gap = "" if record.gap_seconds is None else f" after {record.gap_seconds:.1f} s"
            text = f"answered by {record.exchange_id}{gap} ({record.rule}, confidence {record.confidence:.2f})"
            return _stage("exchanges.classified", record.at, text, record.scenario)
        case TurnMatched() if record.turn_id == turn_id:
            said = " | ".join(f"{m.role}: {' '.join(m.text.split())[:80]}" for m in record.next_state)
            text = f"matched by {record.rule} ({record.evidence}), next state: {said or '(none)'}"
            return _stage("turns.matched", record.answered_at, text, record.scenario)
        case TurnJudged() if record.turn_id == turn_id:
            votes = ", ".join(f"{v.verdict:+d}" if v.verdict is not None else f"({v.reason})" for v in record.votes)
            hints = "".join(f", hint: {hint}" for hint in record.hints)
            verdict = f"verdict {record.verdict:+d} by {record.judge} [{votes}]"
            text = f"{verdict} -> {record.disposition} ({record.reason}){hints}"
            return _stage("turns.judged", record.judged_at, text, record.scenario)
    return None


def _release(record: Any, feedback: set[str]) -> dict[str, Any] | None:
    trained = feedback & set(record.trained)
    dropped = {record.dropped[f] for f in feedback & set(record.dropped)}
    if not trained and not dropped:
        return None
    what = (
        f"step {record.step} {record.event}" if trained else f"left out ({', '.join(sorted(dropped))}), {record.event}"
    )
    loss = record.metrics.get("loss")
    figures = "" if loss is None or not trained else f", loss {loss:.4f}"
    text = f"{what}: release {record.release_id}{figures}{', ' + record.reason if record.reason else ''}"
    return _stage("policy.releases", record.created_at, text, record.scenario)


def _letter(record: Any, turn_id: str) -> dict[str, Any] | None:
    import base64

    if turn_id.encode() not in base64.b64decode(record.value):
        return None
    text = f"{record.service} set {record.dead_letter_id} aside: {record.reason}: {record.error[:120]}"
    return _stage("dead.letters", record.failed_at, text, "")
