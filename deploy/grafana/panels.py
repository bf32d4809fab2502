"""What the dashboards show, as tables. `python -m deploy.grafana.build` writes the JSON that Grafana provisions."""

from __future__ import annotations

from dataclasses import dataclass

RATE = "[$__rate_interval]"
SCENARIO = 'scenario=~"$scenario"'
WINDOW = f'{SCENARIO},window="$window"'


# Every process declares every metric, so one without labels is 0 where it does not apply: max() or sum() over them.


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel. `queries`: legend -> PromQL. `unit`: Grafana's unit id. `width`: of 24 columns."""

    title: str
    about: str
    queries: dict[str, str]
    unit: str = "short"
    kind: str = "timeseries"
    width: int = 8


def per_second(metric: str, by: str, where: str = "") -> dict[str, str]:
    """One query: the rate of a counter by its labels."""
    legend = " ".join("{{" + label.strip() + "}}" for label in by.split(",")) if by else metric
    return {legend: f"sum by ({by}) (rate({metric}{{{where}}}{RATE}))" if by else f"sum(rate({metric}{RATE}))"}


def quantiles(metric: str, by: str = "", where: str = "") -> dict[str, str]:
    """Median and 99th percentile of a histogram."""
    labels = f"le, {by}" if by else "le"
    legend = "{{" + by + "}} " if by else ""
    return {
        f"{legend}p{q}": f"histogram_quantile(0.{q}, sum by ({labels}) (rate({metric}_bucket{{{where}}}{RATE})))"
        for q in ("50", "99")
    }


SIGNAL = [
    Panel(
        "Match rate",
        "Matched main turns / main turns that were answered, had a successor or expired",
        {"{{scenario}}": f"clawback_match_rate_ratio{{{WINDOW}}}"},
        "percentunit",
        "stat",
        12,
    ),
    Panel(
        "Signal rate",
        "Turns that reached an optimizer step / main turns",
        {"{{scenario}}": f"clawback_signal_rate_ratio{{{WINDOW}}}"},
        "percentunit",
        "stat",
        12,
    ),
    Panel(
        "Match rate over time",
        "Over the chosen window",
        {"{{scenario}}": f"clawback_match_rate_ratio{{{WINDOW}}}"},
        "percentunit",
        width=12,
    ),
    Panel(
        "Signal rate over time",
        "Over the chosen window",
        {"{{scenario}}": f"clawback_signal_rate_ratio{{{WINDOW}}}"},
        "percentunit",
        width=12,
    ),
    Panel(
        "How far turns come",
        "Main turns of the window by stage: where the bars shrink, signal is lost",
        {"{{scenario}} {{stage}}": f"clawback_window_turns{{{WINDOW}}}"},
        kind="bargauge",
        width=12,
    ),
    Panel(
        "Unmatched, why",
        "Main exchanges of the window that bound to no reply",
        {"{{scenario}} {{reason}}": f"clawback_window_unmatched_exchanges{{{WINDOW}}}"},
        kind="bargauge",
        width=12,
    ),
    Panel(
        "Tagged, hinted, captured",
        "Share of main turns. No tag and no hint: only the transcript can match. No capture: nothing can train",
        {"{{scenario}} {{kind}}": f"clawback_window_share_ratio{{{WINDOW}}}"},
        "percentunit",
    ),
    Panel(
        "Exchanges by class and reason",
        "What the matcher made of each exchange",
        per_second("clawback_exchanges_total", "class, reason", SCENARIO),
        "reqps",
    ),
    Panel(
        "Exchanges by dialect",
        "Which API the clients of the window speak",
        {"{{scenario}} {{dialect}}": f"clawback_window_dialect_exchanges{{{WINDOW}}}"},
    ),
    Panel(
        "Matches by rule",
        "Which evidence bound the turn",
        per_second("clawback_matched_turns_total", "rule, evidence", SCENARIO),
        "reqps",
    ),
    Panel(
        "Gap between reply and answer",
        "Against the session TTL: answers that come later are lost",
        quantiles("clawback_answer_gap_seconds", "scenario", SCENARIO) | {"TTL": "max(clawback_session_ttl_seconds)"},
        "s",
    ),
    Panel(
        "Sessions that the matcher forgot",
        "Expired or evicted by the bound on open sessions",
        per_second("clawback_sessions_closed_total", "scenario, cause", SCENARIO),
        "cps",
    ),
    Panel(
        "Verdicts",
        "Judged turns by verdict and what becomes of them",
        per_second("clawback_judged_turns_total", "verdict, disposition, reason", SCENARIO),
        "cps",
    ),
    Panel(
        "Hints",
        "Instructions that would have given the wanted reply",
        per_second("clawback_judge_hints_total", "scenario", SCENARIO),
        "cps",
    ),
    Panel(
        "Votes",
        "Valid votes and abstentions",
        per_second("clawback_judge_votes_total", "judge, outcome"),
        "cps",
    ),
    Panel(
        "Abstentions, why",
        "Votes without a verdict",
        per_second("clawback_judge_abstentions_total", "judge, reason", SCENARIO),
        "cps",
    ),
    Panel(
        "Judge",
        "Up, and whether results come from the cache",
        {"up": "max(clawback_judge_up)"} | per_second("clawback_judge_cache_total", "result"),
    ),
    Panel(
        "Judge tokens",
        "Used by judge calls",
        per_second("clawback_judge_tokens_total", "scenario", SCENARIO),
        "cps",
    ),
    Panel("Time to a verdict", "From a matched turn", quantiles("clawback_judge_turn_seconds"), "s"),
]

PIPELINE = [
    Panel(
        "Raw to trained",
        "From the answer's arrival to the end of the step that used it, and each stage on the way",
        quantiles("clawback_stage_seconds", "stage", SCENARIO),
        "s",
        width=12,
    ),
    Panel(
        "Records behind",
        "Not yet committed, seen from the broker: a service that is down shows here",
        {"{{group}} {{topic}}": "sum by (group, topic) (clawback_group_lag_records)"},
        width=12,
    ),
    Panel(
        "Consumer lag by service",
        "As each service reports it",
        {"{{service}} {{topic}}": "sum by (service, topic) (clawback_consumer_lag_records)"},
    ),
    Panel(
        "Records handled",
        "By what became of them",
        per_second("clawback_records_total", "service, outcome"),
        "cps",
    ),
    Panel("Time per record", "Handling only", quantiles("clawback_record_seconds", "service"), "s"),
    Panel(
        "In flight",
        "Records being handled or held",
        {"{{service}}": "sum by (service) (clawback_in_flight_records)"},
    ),
    Panel("Retries", "Attempts repeated", per_second("clawback_retries_total", "service, reason"), "cps"),
    Panel(
        "Dead letters",
        "Set aside by each service, and distinct ones on the topic",
        per_second("clawback_dead_letters_total", "service, reason")
        | {"on the topic {{service}} {{reason}}": "sum by (service, reason) (clawback_dead_letters_seen_total)"},
    ),
    Panel(
        "Gateway requests",
        "By route and status",
        per_second("clawback_gateway_requests_total", "route, status"),
        "reqps",
    ),
    Panel("Gateway latency", "Whole request", quantiles("clawback_gateway_request_seconds", "route"), "s"),
    Panel(
        "Added by the gateway",
        "Its own part of the latency",
        quantiles("clawback_gateway_own_seconds"),
        "s",
    ),
    Panel("Open requests", "Being served", {"open": "sum(clawback_gateway_open_requests)"}),
    Panel(
        "Exchanges recorded",
        "By outcome, and records that the broker acknowledged",
        per_second("clawback_gateway_exchanges_total", "outcome")
        | {"published": f"sum(rate(clawback_gateway_published_total{RATE}))"},
        "reqps",
    ),
    Panel(
        "Not kept, not trainable",
        "Exchanges served but not kept, and kept without a capture",
        {"dropped {{reason}}": f"sum by (reason) (rate(clawback_gateway_dropped_total{RATE}))"}
        | {"untrainable {{reason}}": f"sum by (reason) (rate(clawback_gateway_untrainable_total{RATE}))"},
        "cps",
    ),
    Panel(
        "Refused and repeated",
        "Requests that the gateway refused, upstream calls that it repeated",
        {"refused {{reason}}": f"sum by (reason) (rate(clawback_gateway_rejected_total{RATE}))"}
        | {"repeated {{reason}}": f"sum by (reason) (rate(clawback_gateway_upstream_retries_total{RATE}))"},
        "cps",
    ),
    Panel("Redactions", "By kind", per_second("clawback_gateway_redactions_total", "kind"), "cps"),
    Panel("Spool bytes", "Wait for the broker", {"bytes": "sum(clawback_gateway_spool_bytes)"}, "bytes"),
    Panel("Spool records", "Wait for the broker", {"records": "sum(clawback_gateway_spool_records)"}),
    Panel(
        "Monitor",
        "Exchanges held, and let go early because of its bound",
        {"held": "max(clawback_monitor_exchanges)", "let go early": "max(clawback_monitor_evicted_total)"},
    ),
]

TRAINING = [
    Panel(
        "Optimizer steps",
        "Taken so far",
        {"{{scenario}}": f"clawback_optimizer_steps{{{SCENARIO}}}"},
        kind="stat",
    ),
    Panel(
        "Serving release",
        "By the release log and by the policy server",
        {
            "log {{scenario}}": f"clawback_serving_release_number{{{SCENARIO}}}",
            "policy {{scenario}}": f"clawback_policy_release_number{{{SCENARIO}}}",
            "behind {{scenario}}": f"clawback_policy_behind{{{SCENARIO}}}",
        },
        kind="stat",
    ),
    Panel(
        "Release events",
        "What batches ended in; held: the newest one was held back by the gate",
        {
            "{{scenario}} {{event}}": f"clawback_release_events{{{SCENARIO}}}",
            "newest held {{scenario}}": f"clawback_newest_release_held{{{SCENARIO}}}",
        },
        kind="bargauge",
    ),
    Panel(
        "Losses, KL, drift of the newest step",
        "As reported by the objective that used them",
        {"{{scenario}} {{name}}": f"clawback_trainer_step_metric{{{SCENARIO}}}"},
        width=12,
    ),
    Panel("Step time", "From batch to event", quantiles("clawback_trainer_step_seconds"), "s", width=12),
    Panel(
        "Batches",
        "By what closed them",
        per_second("clawback_batches_total", "scenario, cause", SCENARIO),
        "cps",
    ),
    Panel(
        "Turns batched",
        "Judged turns that went into a batch, and those that wait",
        per_second("clawback_batched_turns_total", "scenario", SCENARIO)
        | {"waiting {{scenario}}": f"clawback_batcher_held_turns{{{SCENARIO}}}"},
    ),
    Panel(
        "Left out by the batcher",
        "Stale, repeated, no signal and so on",
        per_second("clawback_batcher_dropped_total", "scenario, reason", SCENARIO),
        "cps",
    ),
    Panel(
        "Batch age",
        "Wait of a batch's oldest turn",
        quantiles("clawback_batch_age_seconds", where=SCENARIO),
        "s",
    ),
    Panel(
        "Batches at the trainer",
        "By outcome",
        per_second("clawback_trainer_batches_total", "outcome"),
        "cps",
    ),
    Panel(
        "Not released, why",
        "Held, skipped or failed",
        per_second("clawback_trainer_not_released_total", "outcome, reason"),
        "cps",
    ),
    Panel(
        "Samples",
        "Reached a step, or why they did not",
        per_second("clawback_trainer_samples_total", "outcome"),
        "cps",
    ),
    Panel(
        "Drift alarms, commands",
        "Captured against recomputed log-probabilities; rollbacks and promotions",
        {"drift alarms": "sum(clawback_trainer_drift_alarms_total)"}
        | {"{{command}}": "sum by (command) (clawback_trainer_commands_total)"},
    ),
    Panel(
        "Policy requests",
        "By how they ended",
        per_second("clawback_policy_requests_total", "outcome", SCENARIO),
        "reqps",
    ),
    Panel(
        "Policy latency",
        "Whole request, and first token",
        quantiles("clawback_policy_request_seconds")
        | {f"first token {k}": v for k, v in quantiles("clawback_policy_first_token_seconds").items()},
        "s",
    ),
    Panel("Policy step", "One token for the whole batch", quantiles("clawback_policy_step_seconds"), "s"),
    Panel("Policy tokens", "Prompt, cached, reply", per_second("clawback_policy_tokens_total", "kind"), "cps"),
    Panel(
        "Policy load",
        "Sequences running and waiting, key/value memory, releases in memory",
        {
            "running": "sum(clawback_policy_running_sequences)",
            "waiting": "sum(clawback_policy_waiting_sequences)",
            "key/value tokens": "sum(clawback_policy_kv_tokens)",
            "releases": "sum(clawback_policy_resident_releases)",
        },
    ),
    Panel(
        "Reloads",
        "Releases that began to serve, and those refused",
        {"{{scenario}}": f"sum by (scenario) (clawback_policy_reloads_total{{{SCENARIO}}})"}
        | {"refused {{reason}}": "sum by (reason) (clawback_policy_releases_refused_total)"},
    ),
    Panel("Reload time", "Reading and checking a release", quantiles("clawback_policy_reload_seconds"), "s"),
]

DASHBOARDS: dict[str, list[Panel]] = {"Signal": SIGNAL, "Pipeline": PIPELINE, "Training": TRAINING}
