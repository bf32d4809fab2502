"""`python -m tests.bench.matching --corpus DIR --output runs/matching-perturbations.json [--only NAME]`."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from tests.bench.matching.suite import SUITE, load, measure

PRECISION, RECALL = 0.995, 0.95


def main() -> int:
    """Print the table and write the raw results. Returns 1 when a perturbation is below the bounds."""
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--corpus", required=True, type=Path, help="folder with *.traffic.jsonl and *.labels.jsonl")
    ap.add_argument("--output", type=Path)
    ap.add_argument("--only", help="perturbations whose name holds this")
    ap.add_argument("--show", type=int, default=0, help="print so many wrong and missed bindings of each")
    args = ap.parse_args()
    rows = load(sorted(args.corpus.glob("*.traffic.jsonl")))
    if not rows:
        print(f"no *.traffic.jsonl with labels in {args.corpus}", file=sys.stderr)
        return 2
    results = {}
    print(f"| {'perturbation':44} | answers | precision | recall | main/side |\n|{'-' * 46}|---|---|---|---|")
    for name, perturb in SUITE.items():
        if args.only and args.only not in name:
            continue
        got = results[name] = measure(perturb(rows))
        below = got["precision"] < PRECISION or got["recall"] < RECALL
        print(
            f"| {name:44} | {got['answers']:7} | {got['precision']:9.4f} | {got['recall']:6.4f} |"
            f" {got['main_side']:9.4f} |{' below' if below else ''}",
            flush=True,
        )
        for what in ("wrong", "missed"):
            for line in got[what][: args.show]:
                print("    ", what, *line)
    if args.output:
        args.output.parent.mkdir(parents=True, exist_ok=True)
        args.output.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return int(any(r["precision"] < PRECISION or r["recall"] < RECALL for r in results.values()))


if __name__ == "__main__":
    sys.exit(main())
