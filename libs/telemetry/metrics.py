"""Every metric of every service, declared once. A test checks that dashboards and declarations agree both ways.

Names: clawback_<what>_<unit>; counters end in _total, times are in seconds. Labels stay few and bounded: scenario,
reason, rule, class. Never a session, a turn or a tenant.
"""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

_LATENCY = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)

# --- streams: every service's loop -------------------------------------------------------------------------------
RECORDS = Counter("clawback_records_total", "Records by what became of them", ["service", "topic", "outcome"])
RECORD_SECONDS = Histogram("clawback_record_seconds", "Time to handle a record", ["service"], buckets=_LATENCY)
RETRIES = Counter("clawback_retries_total", "Attempts repeated", ["service", "reason"])
DEAD_LETTERS = Counter("clawback_dead_letters_total", "Records set aside", ["service", "reason"])
IN_FLIGHT = Gauge("clawback_in_flight_records", "Records being handled or held", ["service"])
LAG = Gauge("clawback_consumer_lag_records", "Records not yet committed", ["service", "topic", "partition"])

# --- gateway -----------------------------------------------------------------------------------------------------
GATEWAY_REQUESTS = Counter("clawback_gateway_requests_total", "Requests by route and status", ["route", "status"])
GATEWAY_SECONDS = Histogram("clawback_gateway_request_seconds", "Whole request", ["route"], buckets=_LATENCY)
GATEWAY_OWN_SECONDS = Histogram(
    "clawback_gateway_own_seconds", "Time that the gateway itself added to a request", buckets=_LATENCY
)
GATEWAY_OPEN = Gauge("clawback_gateway_open_requests", "Requests being served")
GATEWAY_EXCHANGES = Counter("clawback_gateway_exchanges_total", "Exchanges recorded", ["outcome"])
GATEWAY_DROPPED = Counter("clawback_gateway_dropped_total", "Exchanges served but not kept", ["reason"])
GATEWAY_UNTRAINABLE = Counter("clawback_gateway_untrainable_total", "Exchanges kept without a capture", ["reason"])
GATEWAY_REJECTED = Counter("clawback_gateway_rejected_total", "Requests refused by the gateway", ["reason"])
GATEWAY_RETRIES = Counter("clawback_gateway_upstream_retries_total", "Upstream calls repeated", ["reason"])
GATEWAY_REDACTIONS = Counter("clawback_gateway_redactions_total", "Secrets and personal data replaced", ["kind"])
GATEWAY_PUBLISHED = Counter("clawback_gateway_published_total", "Records that the broker acknowledged")
GATEWAY_SPOOL_BYTES = Gauge("clawback_gateway_spool_bytes", "Bytes that wait for the broker")
GATEWAY_SPOOL_RECORDS = Gauge("clawback_gateway_spool_records", "Records that wait for the broker")

# --- matcher -----------------------------------------------------------------------------------------------------
EXCHANGES = Counter("clawback_exchanges_total", "Exchanges by class and why unbound", ["scenario", "class", "reason"])
MATCHED_TURNS = Counter("clawback_matched_turns_total", "Turns bound to an answer", ["scenario", "rule", "evidence"])
SESSIONS_CLOSED = Counter("clawback_sessions_closed_total", "Sessions that the matcher forgot", ["scenario", "cause"])
ANSWER_GAP_SECONDS = Histogram(
    "clawback_answer_gap_seconds",
    "From a reply to its answer; compare with matcher_ttl_seconds",
    ["scenario"],
    buckets=(0.1, 1, 10, 60, 300, 1800, 3600, 4 * 3600, 12 * 3600, 24 * 3600, 3 * 24 * 3600, 7 * 24 * 3600),
)

# --- judge -------------------------------------------------------------------------------------------------------
JUDGED = Counter("clawback_judged_turns_total", "Judged turns", ["scenario", "verdict", "disposition", "reason"])
JUDGE_HINTS = Counter("clawback_judge_hints_total", "Hints that judged turns carry to the trainer", ["scenario"])
JUDGE_VOTES = Counter("clawback_judge_votes_total", "Votes asked for, valid or abstained", ["judge", "outcome"])
JUDGE_ABSTENTIONS = Counter(
    "clawback_judge_abstentions_total", "Votes without a verdict", ["scenario", "judge", "reason"]
)
JUDGE_UP = Gauge("clawback_judge_up", "1 while the judge's endpoint answers, 0 during an outage")
JUDGE_TOKENS = Counter("clawback_judge_tokens_total", "Tokens used by judge calls", ["scenario"])
JUDGE_CACHE = Counter("clawback_judge_cache_total", "Look-ups of votes by content", ["result"])
JUDGE_SECONDS = Histogram("clawback_judge_turn_seconds", "From a matched turn to its verdict", buckets=_LATENCY)

# --- batcher -----------------------------------------------------------------------------------------------------
BATCHES = Counter("clawback_batches_total", "Batches by what closed them", ["scenario", "cause"])
BATCHED_TURNS = Counter("clawback_batched_turns_total", "Judged turns that went into a batch", ["scenario"])
BATCHER_DROPPED = Counter("clawback_batcher_dropped_total", "Judged turns that no batch took", ["scenario", "reason"])
BATCHER_HELD = Gauge("clawback_batcher_held_turns", "Judged turns that wait for their batch to fill", ["scenario"])
BATCH_AGE_SECONDS = Histogram(
    "clawback_batch_age_seconds", "Wait of a batch's oldest turn", ["scenario"], buckets=_LATENCY
)

# --- trainer -----------------------------------------------------------------------------------------------------
_STEP = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)
TRAINER_BATCHES = Counter(
    "clawback_trainer_batches_total", "Batches by outcome: released, held, skipped, failed, repeated", ["outcome"]
)
TRAINER_NOT_RELEASED = Counter(
    "clawback_trainer_not_released_total", "Batches that released nothing, by reason", ["outcome", "reason"]
)
TRAINER_SAMPLES = Counter(
    "clawback_trainer_samples_total", "Samples that reached a step (trained) or why they did not", ["outcome"]
)
TRAINER_STEP_SECONDS = Histogram("clawback_trainer_step_seconds", "Time from batch to event", buckets=_STEP)
TRAINER_STEP_METRIC = Gauge(
    "clawback_trainer_step_metric",
    "Losses, coefficients as used, norms and drift of the newest step",
    ["scenario", "name"],
)
TRAINER_DRIFT_ALARMS = Counter(
    "clawback_trainer_drift_alarms_total", "Steps whose captured and recomputed log-probabilities differ too much"
)
TRAINER_COMMANDS = Counter("clawback_trainer_commands_total", "Rollbacks and promotions applied", ["command"])

# --- policy ------------------------------------------------------------------------------------------------------
POLICY_REQUESTS = Counter("clawback_policy_requests_total", "Requests by how they ended", ["scenario", "outcome"])
POLICY_REQUEST_SECONDS = Histogram("clawback_policy_request_seconds", "Whole request", buckets=_LATENCY)
POLICY_FIRST_TOKEN_SECONDS = Histogram(
    "clawback_policy_first_token_seconds", "From the request to its first token", buckets=_LATENCY
)
POLICY_STEP_SECONDS = Histogram("clawback_policy_step_seconds", "One token for the whole batch", buckets=_LATENCY)
POLICY_TOKENS = Counter("clawback_policy_tokens_total", "Tokens: prompt, cached (part of prompt), reply", ["kind"])
POLICY_RUNNING = Gauge("clawback_policy_running_sequences", "Sequences in the batch")
POLICY_WAITING = Gauge("clawback_policy_waiting_sequences", "Sequences that wait for a place")
POLICY_KV_TOKENS = Gauge("clawback_policy_kv_tokens", "Tokens of key/value memory in use")
POLICY_RELOADS = Counter("clawback_policy_reloads_total", "Releases that began to serve", ["scenario"])
POLICY_REFUSED = Counter("clawback_policy_releases_refused_total", "Releases not served", ["scenario", "reason"])
POLICY_RELOAD_SECONDS = Histogram("clawback_policy_reload_seconds", "Reading and checking a release", buckets=_LATENCY)
POLICY_RELEASE_NUMBER = Gauge("clawback_policy_release_number", "Number of the release that serves", ["scenario"])
POLICY_BEHIND = Gauge("clawback_policy_behind", "1 where another release serves than the log says", ["scenario"])
POLICY_RESIDENT = Gauge("clawback_policy_resident_releases", "Releases in memory besides the base")

# --- monitor -----------------------------------------------------------------------------------------------------
MATCH_RATE = Gauge(
    "clawback_match_rate_ratio", "Matched main turns / main turns answered or expired", ["scenario", "window"]
)
SIGNAL_RATE = Gauge(
    "clawback_signal_rate_ratio", "Turns that reached an optimizer step / main turns", ["scenario", "window"]
)
WINDOW_TURNS = Gauge(
    "clawback_window_turns", "Main turns of the window that got this far", ["scenario", "window", "stage"]
)
WINDOW_UNMATCHED = Gauge(
    "clawback_window_unmatched_exchanges", "Main exchanges that bound to no reply", ["scenario", "window", "reason"]
)
WINDOW_DIALECT = Gauge(
    "clawback_window_dialect_exchanges", "Exchanges of the window by API", ["scenario", "window", "dialect"]
)
WINDOW_SHARE = Gauge(
    "clawback_window_share_ratio", "Share of main turns tagged, hinted or captured", ["scenario", "window", "kind"]
)
STAGE_SECONDS = Histogram(
    "clawback_stage_seconds", "From the answer's arrival through each stage", ["scenario", "stage"], buckets=_LATENCY
)
RELEASE_NUMBER = Gauge("clawback_serving_release_number", "Releases before and at the serving one", ["scenario"])
OPTIMIZER_STEPS = Gauge("clawback_optimizer_steps", "Optimizer steps taken", ["scenario"])
RELEASE_EVENTS = Gauge("clawback_release_events", "Events of the release chain so far", ["scenario", "event"])
NEWEST_HELD = Gauge(
    "clawback_newest_release_held", "1 while the newest batch's release was held back by the gate", ["scenario"]
)
GROUP_LAG = Gauge("clawback_group_lag_records", "Records a consumer group has not committed", ["group", "topic"])
SESSION_TTL = Gauge("clawback_session_ttl_seconds", "How long an open session waits for its answer")
MONITOR_DEAD_LETTERS = Counter(
    "clawback_dead_letters_seen_total", "Distinct dead letters on the topic", ["service", "topic", "reason"]
)
MONITOR_EXCHANGES = Gauge("clawback_monitor_exchanges", "Exchanges whose facts the monitor holds")
MONITOR_EVICTED = Counter("clawback_monitor_evicted_total", "Exchanges let go early because of the monitor's bound")
