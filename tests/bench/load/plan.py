"""From runs/load.json to what 10,000 exchanges a second need: `python -m tests.bench.load.plan > docs/capacity.md`.

Every figure is either measured (runs/load.json) or an assumption of the table that the page prints.
"""

from __future__ import annotations

import json
import math
import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from deploy.local.stack import ROOT


@dataclass(frozen=True, slots=True)
class Assumed:
    """What is not measured here; change them for your own traffic and hardware."""

    exchanges_per_second: float = 10_000
    core_use: float = 0.6  # share of a core that a process may use in the mean, the rest is for peaks
    session_ttl_hours: float = 24
    exchanges_per_session: float = 6
    answered_share: float = 0.5  # exchanges whose reply is answered, and so judged
    signal_share: float = 0.2  # judged turns that train
    retention_hours: float = 168
    compression: float = 3.0  # zstd on JSON
    judge_tokens_per_turn: float = 1500  # prompt and answer of one vote
    judge_votes: float = 3
    judge_gpu_tokens_per_second: float = 20_000  # one GPU, a model of about 8 billion parameters, batched
    trainer_tokens_per_turn: float = 1500
    trainer_gpu_tokens_per_second: float = 10_000  # forward, backward and the frozen base


def plan(base: dict[str, Any], assumed: Assumed) -> list[tuple[str, str, str]]:
    """(what, how much, the arithmetic) for each resource. `base` is one variant of runs/load.json."""
    rate = assumed.exchanges_per_second
    rows = []
    for name in ("gateway", "matcher", "judge", "broker", "redis"):
        micros = base["cpu_us_per_exchange"][name]
        cores = math.ceil(rate * micros / 1e6 / assumed.core_use)
        sum_ = f"{rate:.0f}/s x {micros:.0f} us / {assumed.core_use}"
        rows.append((f"{name} cores" + (" (rules)" if name == "judge" else ""), str(cores), sum_))
    per_core = assumed.core_use * 1e6 / base["cpu_us_per_exchange"]["matcher"]
    rows.append(
        (
            "partitions of traffic.raw and turns.matched",
            str(math.ceil(rate / per_core)),
            f"one matcher process a partition at most: {rate:.0f}/s / {per_core:.0f}/s a process",
        )
    )
    open_sessions = rate / assumed.exchanges_per_session * assumed.session_ttl_hours * 3600
    memory = open_sessions * base["redis_bytes_per_session"] / 1024**3
    rows.append(
        (
            "Redis memory",
            f"{memory:.0f} GiB",
            f"{open_sessions / 1e6:.0f} million sessions within the TTL x {base['redis_bytes_per_session']} bytes",
        )
    )
    sizes = base["record_bytes"]
    per_second = rate * (sizes["traffic.raw"] + sizes["exchanges.classified"])
    per_second += rate * assumed.answered_share * (sizes["turns.matched"] + sizes["turns.judged"])
    disk = per_second * assumed.retention_hours * 3600 / assumed.compression / 1024**4
    rows.append(("broker traffic in", f"{per_second / 1024**2:.0f} MiB/s", "records x their mean size, uncompressed"))
    rows.append(("broker disk, one copy", f"{disk:.1f} TiB", f"that x {assumed.retention_hours:.0f} h / compression"))
    tokens = rate * assumed.answered_share * assumed.judge_votes * assumed.judge_tokens_per_turn
    rows.append(
        (
            "judge GPUs (prm, all votes cast)",
            str(math.ceil(tokens / assumed.judge_gpu_tokens_per_second)),
            f"{tokens / 1e6:.1f} million tokens/s / {assumed.judge_gpu_tokens_per_second:.0f}",
        )
    )
    trained = rate * assumed.answered_share * assumed.signal_share
    tokens = trained * assumed.trainer_tokens_per_turn
    rows.append(
        (
            "trainer GPUs",
            str(math.ceil(tokens / assumed.trainer_gpu_tokens_per_second)),
            f"{trained:.0f} turns/s x {assumed.trainer_tokens_per_turn:.0f} tokens",
        )
    )
    return rows


def page(load: dict[str, Any], assumed: Assumed) -> str:
    """The whole page as Markdown."""
    variants = load["variants"]
    base = variants.get("base") or next(iter(variants.values()))
    lines = [
        "# Capacity",
        "",
        "What one machine sustained from the gateway to judged turns, and what follows for "
        f"{assumed.exchanges_per_second:,.0f} exchanges a second.",
        f"Measured by `make load` on {load['cores']} cores (load average {load['load_average'][0]} at the start), with",
        "the clients on the same cores: trust CPU per exchange and ratios.",
        "This page: `python -m tests.bench.load.plan`.",
        "",
        "| variant | exchanges/s | raw to judged p50 / p99 ms | CPU us an exchange: gateway, matcher, judge, broker, "
        "Redis |",
        "|---|---|---|---|",
    ]
    for name, found in variants.items():
        cpu = ", ".join(f"{found['cpu_us_per_exchange'][part]:.0f}" for part in base["cpu_us_per_exchange"])
        late = found["raw_to_judged_ms"]
        lines.append(
            f"| {name} | {found['sustained_exchanges_per_second']} | {late.get('p50')} / {late.get('p99')} | {cpu} |"
        )
    lines += ["", "| needed | | arithmetic |", "|---|---|---|"]
    lines += [f"| {what} | {much} | {how} |" for what, much, how in plan(base, assumed)]
    lines += ["", "Assumed, to be replaced by your own:", "", "| assumption | value |", "|---|---|"]
    lines += [f"| {f.name.replace('_', ' ')} | {getattr(assumed, f.name):g} |" for f in fields(assumed)]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    source = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "runs" / "load.json"
    print(page(json.loads(source.read_text()), Assumed()), end="")
