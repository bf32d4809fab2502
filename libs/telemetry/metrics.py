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

# --- matcher -----------------------------------------------------------------------------------------------------

# --- judge -------------------------------------------------------------------------------------------------------

# --- batcher -----------------------------------------------------------------------------------------------------

# --- trainer -----------------------------------------------------------------------------------------------------

# --- policy ------------------------------------------------------------------------------------------------------

# --- monitor -----------------------------------------------------------------------------------------------------
