"""`make bench`: run every tests/bench/*_bench.py one after the other and gather what they measured in runs/bench.json.

A benchmark is a module that runs without arguments and writes runs/bench-<name>.json, a flat map from figure to number.
One that fails is named, the others still run, and the exit status says so.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
WANTED = (
    "gateway_throughput_over_litellm",
    "gateway_added_ms_p50",
    "gateway_added_ms_p99",
    "matcher_exchanges_per_second",
    "matcher_cost_100k_over_1k_sessions",
    "matcher_over_scan",
    "judge_turns_per_second",
    "step_over_floor",
    "step_memory_over_naive",
    "serve_over_generate",
)


def gather(parts: Path) -> dict[str, float]:
    """All figures of all benchmarks in one flat map: those in WANTED by their name, others as <benchmark>.<name>.

    Raises ValueError when two benchmarks give the same figure.
    """
    figures: dict[str, float] = {}
    for path in sorted(parts.glob("bench-*.json")):
        benchmark = path.stem.removeprefix("bench-")
        for name, value in json.loads(path.read_text()).items():
            if not isinstance(value, int | float) or isinstance(value, bool):
                continue
            key = name if name in WANTED else f"{benchmark}.{name}"
            if key in figures:
                raise ValueError(f"{key} is measured twice, the second time in {path.name}")
            figures[key] = value
    return figures


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("names", nargs="*", help="run only these (<name>_bench.py); all unless given")
    args = parser.parse_args(argv)
    found = {path.stem.removesuffix("_bench"): path for path in sorted(HERE.glob("*_bench.py"))}
    unknown = set(args.names) - set(found)
    if unknown:
        parser.error(f"no such benchmark: {', '.join(sorted(unknown))}; there are {', '.join(found)}")
    parts = ROOT / "runs"
    parts.mkdir(parents=True, exist_ok=True)
    failed = []
    for name in args.names or found:
        print(f"-- {name}", flush=True)
        started = time.monotonic()
        code = subprocess.run([sys.executable, "-m", f"tests.bench.{name}_bench"], cwd=ROOT, check=False).returncode
        print(
            f"-- {name}: {'done' if code == 0 else f'FAILED ({code})'} in {time.monotonic() - started:.0f} s",
            flush=True,
        )
        failed += [name] if code else []
    figures = gather(parts)
    (parts / "bench.json").write_text(json.dumps(figures, indent=2, sort_keys=True) + "\n")
    width = max(map(len, figures), default=0)
    for name, value in sorted(figures.items()):
        print(f"{name:{width}}  {value:.4g}")
    missing = [name for name in WANTED if name not in figures]
    if missing:
        print(f"not measured: {', '.join(missing)}", file=sys.stderr)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
