"""`make experiment`: every arm over several seeds, 36 sessions each, and the report generated from what they left.

It resumes: a run whose summary.json says that it finished is not held again. Each arm has a stack of its own settings,
each seed a scenario of its own on it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from experiments.homework import study_report
from experiments.homework.arms import ARMS, UNRELATED, Arm
from experiments.homework.local import local_stack, run_interruptible
from experiments.homework.progress import Progress
from experiments.homework.run import DEFAULT_TTL_SECONDS, WAVE, Plan, execute
from experiments.homework.sessions import Shape
from libs.errors import ClawbackError

SESSIONS = 36


def finished(directory: Path) -> bool:
    """Whether a run's summary is there and says that the run came to its end."""
    try:
        return bool(json.loads((directory / "summary.json").read_text())["finished"])
    except (FileNotFoundError, json.JSONDecodeError, KeyError):
        return False


def run_arm(arm: Arm, seeds: Sequence[int], root: Path, home: Path, sessions: int) -> None:
    """Hold the runs of one arm that are still missing. Raises ClawbackError when the stack does not start."""
    missing = [seed for seed in seeds if not finished(root / arm.name / f"seed-{seed}")]
    if not missing:
        print(f"{arm.name}: all {len(seeds)} seeds are there")
        return
    with Progress(sessions, DEFAULT_TTL_SECONDS) as progress, local_stack(home, progress, arm.env) as stack:
        for seed in missing:
            progress.doing(f"{arm.name}, seed {seed}")
            directory = root / arm.name / f"seed-{seed}"
            for stale in directory.glob("raw/*.jsonl"):  # of a run that was cut short
                stale.unlink()
            plan = Plan(
                directory=directory,
                seed=seed,
                sessions=sessions,
                # Where a session cannot change a later one, all may be held at once.
                wave=WAVE if arm.recorded or arm.memory else sessions,
                base_replies=root / "base",
                shape=Shape(recorded=arm.recorded),
                preference=arm.preference,
                memory=arm.memory,
                scenario=f"{arm.name}-{seed}-{os.getpid()}",
                unrelated=UNRELATED,
            )
            directory.mkdir(parents=True, exist_ok=True)
            (directory / "environment.json").write_text(json.dumps(tuning(os.environ), indent=2) + "\n")
            run_interruptible(
                execute(
                    plan,
                    gateway_url=stack.gateway_url,
                    bootstrap=stack.kafka_bootstrap_servers,
                    progress=progress,
                )
            )


def tuning(environment: Mapping[str, str]) -> dict[str, str]:
    """The services' settings that the environment changes, addresses and secrets apart: they belong to the results."""
    apart = ("_KEY", "_URL", "_TOKENS", "_PASSWORD", "_USERNAME", "_SERVERS", "_HOME", "_MODEL", "_DIR")
    return {n: v for n, v in environment.items() if n.startswith("CLAWBACK_") and not n.endswith(apart)}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make experiment", description=__doc__)
    parser.add_argument("--seeds", type=int, default=5, help="seeds 0 to N-1 of each arm")
    parser.add_argument("--sessions", type=int, default=SESSIONS)
    parser.add_argument("--arms", default=",".join(arm.name for arm in ARMS), help="comma-separated names")
    parser.add_argument("--runs", type=Path, default=Path("runs/experiment"))
    parser.add_argument("--report", type=Path, default=Path("docs/experiments/homework.md"))
    parser.add_argument("--report-only", action="store_true", help="write the report from the runs that are there")
    args = parser.parse_args(argv)
    names = args.arms.split(",")
    unknown = set(names) - {arm.name for arm in ARMS}
    if unknown:
        parser.error(f"no such arm: {', '.join(sorted(unknown))}; there are {', '.join(arm.name for arm in ARMS)}")
    home = Path(os.environ.get("CLAWBACK_HOME") or ".clawback").resolve()
    status = 0
    try:
        for arm in [arm for arm in ARMS if arm.name in names and not args.report_only]:
            run_arm(arm, range(args.seeds), args.runs, home, args.sessions)
    except KeyboardInterrupt:
        print("interrupted; `make experiment` goes on from here", file=sys.stderr)
        status = 130
    except ClawbackError as error:
        print(f"error: {error}", file=sys.stderr)
        status = 1
    study_report.write(args.runs, args.report)
    print(f"report: {args.report}")
    return status


if __name__ == "__main__":
    sys.exit(main())
