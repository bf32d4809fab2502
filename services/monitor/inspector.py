"""Conversations as the Inspector shows them: turns in order, each with its state, reason, verdict, hints and step."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import msgspec

from libs.telemetry.ledger import Ledger
from libs.telemetry.rates import OPENING_REASONS, Turn
from services.monitor.conversations import Conversations


def state_of(turn: Turn, *, expired_before: float) -> tuple[str, str]:
    """(state, reason) of an exchange's reply: what colours it and why.

    States: trained, held, signal, judged, matched, side, waiting, expired, unmatched, unclassified.
    """
    if not turn.exchange_class:
        return "unclassified", f"outcome_{turn.outcome}"
    if not turn.is_main:
        return "side", turn.exchange_class
    if turn.trained:
        return ("held", "gate") if turn.held else ("trained", "trained")
    judged = [f for f in turn.feedback.values() if f.judged]
    if any(f.disposition == "train" for f in judged):
        dropped = next((f.dropped for f in judged if f.dropped), "")
        return "signal", dropped or "awaits_a_step"
    if judged:
        return "judged", judged[-1].reason
    if turn.answered_by is not None:
        return "matched", turn.answered_rule or "matched"
    if turn.answers is None and turn.reason not in OPENING_REASONS:
        return "unmatched", turn.reason
    return ("expired", "no_answer_within_ttl") if turn.at < expired_before else ("waiting", "no_answer_yet")


def conversations(
    ledger: Ledger,
    texts: Conversations,
    *,
    scenario: str | None,
    reason: str | None,
    session: str | None,
    limit: int,
    expired_before: float,
) -> list[dict[str, Any]]:
    """The newest `limit` conversations that have a turn in `scenario` and with `reason`, newest first."""
    groups: dict[tuple[str, str, str], list[Turn]] = defaultdict(list)
    for turn in ledger.turns.values():
        if scenario is None or turn.scenario == scenario:
            groups[turn.conversation or (turn.scenario, turn.tenant, f"({turn.exchange_id})")].append(turn)
    newest = sorted(groups.items(), key=lambda item: -max(t.at for t in item[1]))
    found: list[dict[str, Any]] = []
    for (name, tenant, session_id), turns in newest:
        if session is not None and session_id != session:
            continue
        rows = [_row(turn, texts, expired_before) for turn in sorted(turns, key=lambda t: (t.at, t.exchange_id))]
        if reason is None or any(reason in (row["reason"], row["state"]) for row in rows):
            found.append({"scenario": name, "tenant": tenant, "session_id": session_id, "turns": rows})
        if len(found) >= limit:
            break
    return found


def reasons(ledger: Ledger) -> list[str]:
    """What the reason filter offers."""
    return sorted({state_of(turn, expired_before=0.0)[1] for turn in ledger.turns.values()} - {""})


def _row(turn: Turn, texts: Conversations, expired_before: float) -> dict[str, Any]:
    state, reason = state_of(turn, expired_before=expired_before)
    text = texts.get(turn.exchange_id)
    return {
        "turn_id": turn.exchange_id,
        "at": turn.at,
        "class": turn.exchange_class,
        "state": state,
        "reason": reason,
        "rule": turn.answered_rule,
        "answered_by": turn.answered_by,
        "feedback": [
            {"verdict": f.verdict, "disposition": f.disposition, "reason": f.reason, "batch": f.batch_id}
            | {"release": f.release_id, "event": f.event, "dropped": f.dropped}
            for f in turn.feedback.values()
        ],
        "text": msgspec.to_builtins(text),
    }
