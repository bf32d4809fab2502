"""What keeps one scenario's traffic from becoming signal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from libs.cli.doctor.findings import Finding, System

_WINDOW_SECONDS = {"5m": 300.0, "1h": 3600.0}
_FAILING = 0.1  # share of the exchanges


def of_scenario(s: System, scenario: str) -> Iterator[Finding]:
    """Every cause found in one scenario's figures over the window."""
    facts = s.status["scenarios"][scenario]
    for rule in _RULES:
        yield from rule(s, scenario, facts["windows"][s.window], facts.get("release") or {})


def _identity(s: System, scenario: str, f: Mapping[str, Any], release: Mapping[str, Any]) -> Iterator[Finding]:
    turns, named = f["turns"], f["tagged"] + f["hinted"]
    if turns < 5 or named:
        return
    rate = f["match_rate"]
    low = rate is None or rate < 0.5
    yield Finding(
        "no_tags_no_hints",
        "costs" if low else "note",
        scenario,
        "No request names its conversation: neither a tag nor a session id that clients send anyway. Only the "
        "transcript can match.",
        f"0 of {turns} turns are tagged or hinted, match rate {_percent(rate)}",
        "Send the header x-reef-tag-session with one value per conversation.",
    )


def _side_calls(s: System, scenario: str, f: Mapping[str, Any], release: Mapping[str, Any]) -> Iterator[Finding]:
    side = f["classes"].get("side", 0) + f["classes"].get("compaction", 0)
    if side >= 5 and f["turns"] == 0:
        yield Finding(
            "side_calls_only",
            "stops",
            scenario,
            "Only side calls pass the gateway (titles, summaries, heartbeats); the conversation itself goes elsewhere.",
            f"{side} side calls, 0 main turns",
            "Set the base URL for the agent's main model as well, not only for its small or fast one.",
        )


def _compaction(s: System, scenario: str, f: Mapping[str, Any], release: Mapping[str, Any]) -> Iterator[Finding]:
    compactions, lost = f["classes"].get("compaction", 0), f["unmatched"].get("reply_not_served", 0)
    if compactions and lost >= max(2, compactions / 2) and not f["rules"].get("bridge"):
        yield Finding(
            "compacts_without_tail",
            "costs",
            scenario,
            "The agent compacts its history and keeps no recent messages, so the reply being answered is gone.",
            f"{compactions} compactions, {lost} requests whose history holds no served reply",
            "Have the agent keep the last messages when it compacts, or send x-reef-tag-session.",
        )
    elif lost and lost >= 0.2 * max(1, f["turns"]):
        yield Finding(
            "history_rewritten",
            "costs",
            scenario,
            "Requests bring assistant messages that this gateway never served.",
            f"{lost} of {f['turns']} turns: reply_not_served",
            "Route the whole conversation through the gateway, and let the client keep replies as they came.",
        )
    if n := f["unmatched"].get("ambiguous", 0):
        yield Finding(
            "ambiguous",
            "costs" if n >= 0.1 * max(1, f["turns"]) else "note",
            scenario,
            "Several open conversations look the same, so the match was left open.",
            f"{n} of {f['turns']} turns",
            "Send x-reef-tag-session with one value per conversation.",
        )


def _ttl(s: System, scenario: str, f: Mapping[str, Any], release: Mapping[str, Any]) -> Iterator[Finding]:
    late = f["unmatched"].get("expired", 0)
    if late:
        ttl, gap = s.status["session_ttl_seconds"], s.status["gap_seconds"]
        known = f", at most {gap['late_max']:.0f} s after the reply" if gap["late_max"] is not None else ""
        yield Finding(
            "ttl_too_short",
            "costs",
            scenario,
            "People answer after the session has expired.",
            f"{late} of {f['turns']} turns came after the TTL of {ttl:.0f} s{known}",
            "Raise CLAWBACK_MATCHER_TTL_SECONDS above the gaps.",
        )


def _failures(s: System, scenario: str, f: Mapping[str, Any], release: Mapping[str, Any]) -> Iterator[Finding]:
    exchanges, outcomes = f["exchanges"], f["outcomes"]
    failed, gone = outcomes.get("upstream_error", 0), outcomes.get("client_gone", 0)
    if failed >= max(2, _FAILING * exchanges):
        yield Finding(
            "requests_fail",
            "stops" if failed == exchanges else "costs",
            scenario,
            "The model's server refuses or breaks off requests; a reply that never came teaches nothing.",
            f"{failed} of {exchanges} exchanges ended in upstream_error",
            "See its answers with `clawback tap traffic.raw` (outcome, response) and its log; "
            "CLAWBACK_GATEWAY_UPSTREAM_URL names it.",
        )
    if gone >= max(2, _FAILING * exchanges):
        yield Finding(
            "clients_give_up",
            "costs",
            scenario,
            "Clients close the connection before the reply ends; what they did not read they cannot correct.",
            f"{gone} of {exchanges} exchanges ended in client_gone",
            "Raise the client's timeout, or let it stream.",
        )


def _capture(s: System, scenario: str, f: Mapping[str, Any], release: Mapping[str, Any]) -> Iterator[Finding]:
    failed = f["outcomes"].get("upstream_error", 0)  # these have none, and are told of by themselves
    if f["turns"] > failed and f["captured"] < (0.5 * (f["turns"] - failed) if f["turns"] >= 5 else 1):
        yield Finding(
            "capture_missing",
            "stops" if f["captured"] == 0 else "costs",
            scenario,
            "Turns come without token ids and log-probs: they can be judged, not trained.",
            f"{f['captured']} of {f['turns']} turns have a capture",
            "Serve this scenario from the built-in policy, vLLM or SGLang with the capture on (docs/gateway.md).",
        )


def _no_verdicts(s: System, scenario: str, f: Mapping[str, Any], release: Mapping[str, Any]) -> Iterator[Finding]:
    if f["matched"] >= 5 and f["judged"] == 0 and "judge" not in s.down:
        yield Finding(
            "matches_without_verdicts",
            "stops",
            scenario,
            "Turns are matched and none has a verdict.",
            f"{f['matched']} matched, 0 judged",
            "See the judge's log and lag; runbook ClawbackMatchesWithoutVerdicts.",
        )
    abstained, judged = sum(f["abstentions"].values()), sum(f["verdicts"].values())
    if abstained > judged:
        why = ", ".join(f"{reason} {n}" for reason, n in f["abstentions"].items())
        yield Finding(
            "judge_abstains",
            "costs",
            scenario,
            "Votes end without a verdict.",
            f"{abstained} abstentions ({why}) on {judged} judged turns",
            "Runbook ClawbackJudgeAbstaining.",
        )
    silent = f["no_signal"].get("no_signal", 0)
    if judged >= 20 and silent >= 0.95 * judged:
        yield Finding(
            "nothing_to_learn",
            "note",
            scenario,
            "Hardly any answer says whether the reply was good.",
            f"{silent} of {judged} judged turns hold no judgement",
            "That may be the traffic. If corrections are there, try the prm judge (CLAWBACK_JUDGE_KIND=prm).",
        )


def _batches(s: System, scenario: str, f: Mapping[str, Any], release: Mapping[str, Any]) -> Iterator[Finding]:
    waiting = f["signal"] - f["batched"]
    if f["signal"] == 0 or f["batched"] or waiting >= s.batch_size or "batcher" in s.down:
        return
    windows = s.status["scenarios"][scenario]["windows"]
    # The short window tells the rate of traffic that has only just begun.
    per_second = max(windows[name]["signal"] / seconds for name, seconds in _WINDOW_SECONDS.items())
    fill = s.batch_size / per_second if per_second else None
    if fill is not None and fill <= s.batch_max_age_seconds:
        return  # it fills before it would close
    rate = f"at this rate a batch fills in {fill / 60:.0f} min; " if fill is not None else ""
    rate += f"it closes unfilled after {s.batch_max_age_seconds:.0f} s"
    yield Finding(
        "batches_too_large",
        "costs",
        scenario,
        "Judged turns wait for a batch to fill.",
        f"{waiting} of {s.batch_size} turns are there; {rate}",
        "Lower CLAWBACK_BATCHER_BATCH_SIZE or CLAWBACK_BATCHER_MAX_AGE_SECONDS.",
    )


def _releases(s: System, scenario: str, f: Mapping[str, Any], release: Mapping[str, Any]) -> Iterator[Finding]:
    events = release.get("events", {})
    why = release.get("last_reason") or "no reason"
    if release.get("last_event") == "held":
        yield Finding(
            "release_held",
            "costs",
            scenario,
            "The gate holds the newest release back; the former one serves on.",
            f"{events.get('held', 0)} held, {events.get('released', 0)} released; {why}",
            "`clawback releases` shows the gate's figures; `clawback promote` overrides it.",
        )
    ended = events.get("failed", 0) + events.get("skipped", 0)
    if ended and not events.get("released"):
        yield Finding(
            "no_step_succeeds",
            "stops",
            scenario,
            "Batches reach the trainer and none becomes a release.",
            f"{ended} failed or skipped; {why}",
            "`clawback releases` gives each reason.",
        )
    if f["batched"] >= 4 and f["trained"] == 0 and not events and "trainer" not in s.down:
        yield Finding(
            "trainer_silent",
            "stops",
            scenario,
            "Batches are there and the trainer has said nothing about them.",
            f"{f['batched']} turns in batches, 0 trained",
            "See the trainer's log; runbook ClawbackVerdictsWithoutSteps.",
        )


def _drops(s: System, scenario: str, f: Mapping[str, Any], release: Mapping[str, Any]) -> Iterator[Finding]:
    stale = f["drops"].get("stale", 0) + s.total("clawback_batcher_dropped_total", scenario=scenario, reason="stale")
    if stale >= 3:
        yield Finding(
            "stale",
            "costs",
            scenario,
            "Turns are older than the policy may be, and are left out.",
            f"{stale:.0f} turns dropped as stale",
            "Raise CLAWBACK_BATCHER_MAX_STALENESS and CLAWBACK_TRAINER_MAX_STALENESS, or make larger, rarer steps.",
        )


def _percent(rate: float | None) -> str:
    return "-" if rate is None else f"{100 * rate:.0f} %"


_RULES = (
    _identity,
    _side_calls,
    _compaction,
    _ttl,
    _failures,
    _capture,
    _no_verdicts,
    _batches,
    _releases,
    _drops,
)
