"""`make chaos`: a whole local stack under steady load while everything that can go wrong does. Writes runs/chaos.json.

The model is a random Llama of a few thousand parameters, so that two cores serve and train it hundreds of times while
processes start over and over; all else is as `clawback up` starts it. Exit status 1 when an exchange is lost, trained
twice or bound to a reply that it does not answer.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

from deploy.local import stack as local
from deploy.local.stack import NAMES, ROOT
from deploy.local.state import Stack
from libs.errors import ConfigError, RetryError
from libs.streams.config import ServiceSettings
from libs.streams.follow import read
from libs.streams.types import StreamRecord
from tests.bench.chaos.account import TOPICS, Account, account, facts_of
from tests.bench.chaos.faults import Faults
from tests.bench.chaos.load import Load
from tests.tiny_model import write_model

MODEL = "smollm2-135m-instruct"  # the name under which services look for their model
SPOOL_BYTES = 4 * 1024 * 1024
ENV = {
    "CLAWBACK_BATCHER_BATCH_SIZE": "4",
    "CLAWBACK_BATCHER_MAX_AGE_SECONDS": "5",
    "CLAWBACK_BATCHER_MAX_STALENESS": "1000",
    "CLAWBACK_TRAINER_MAX_STALENESS": "1000",
    # A random model has nothing to collapse from; the gate and the guard would hold every release.
    "CLAWBACK_TRAINER_GATE": "false",
    "CLAWBACK_TRAINER_GUARD": "false",
    "CLAWBACK_TRAINER_KEEP_RELEASES": "4",
    "CLAWBACK_STREAM_DEAD_LETTERS_IN_A_ROW": "1000",
    "CLAWBACK_STREAM_DRAIN_SECONDS": "5",
}


@contextlib.contextmanager
def small_disk(path: Path) -> Iterator[bool]:
    """A file system of SPOOL_BYTES at `path`, where mounting is allowed; yields whether it is."""
    path.mkdir(parents=True, exist_ok=True)
    options = ["mount", "-t", "tmpfs", "-o", f"size={SPOOL_BYTES}", "tmpfs", str(path)]
    mounted = subprocess.run(options, capture_output=True, check=False).returncode == 0
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", str(path)], check=False)


async def all_records(settings: ServiceSettings) -> list[StreamRecord]:
    return [record async for record in read(settings, TOPICS) if record is not None]


async def settled(
    settings: ServiceSettings, load: Load, faults: Faults, home: Path, patience_seconds: float
) -> Account:
    """Wait until every accepted exchange has its end, or nothing has moved for the patience."""
    moved, last = time.monotonic(), -1
    while True:
        with contextlib.suppress(RetryError):
            records = await all_records(settings)
            logs = [home / "logs" / f"{name}.log" for name in ("batcher", "batcher-extra", "gateway")]
            facts = await asyncio.to_thread(facts_of, records, logs)
            found = account([*load.accepted, *faults.skewed], facts)
            found.records = {topic: sum(r.topic == topic for r in records) for topic in TOPICS}
            print(
                f"  settling: {found.accepted} accepted, {found.lost} without an end, {len(records)} records",
                flush=True,
            )
            if len(records) != last:
                moved, last = time.monotonic(), len(records)
            if (not found.lost and time.monotonic() - moved > 5) or time.monotonic() - moved > patience_seconds:
                return found
        await asyncio.sleep(2)


async def misfortune(faults: Faults, args: argparse.Namespace, mount: Path | None) -> int:
    """All other faults, one after the other, while the kills go on. Returns how many dead letters must be there."""
    dice = random.Random(args.seed)
    poisoned = await faults.poison()
    steps: list[Any] = [
        lambda: faults.restart_redis(keep=True),
        lambda: faults.join_and_leave("matcher", args.pause / 2),
        lambda: faults.pause("judge", args.pause / 3),
        faults.deliver_again,
        lambda: faults.pause("broker", args.pause),
        lambda: faults.skew_clocks(10),
        lambda: faults.join_and_leave("judge", args.pause / 2),
        lambda: faults.restart_redis(keep=False),
        lambda: faults.join_and_leave("batcher", args.pause / 2),
        faults.deliver_again,
    ]
    if mount is not None:
        steps.append(lambda: faults.fill_disk(mount, args.pause / 2))
    dice.shuffle(steps)
    for step in steps:
        try:
            await step()
        except (RetryError, ConfigError) as error:
            print(f"  fault not carried out: {error}", flush=True)
        print(f"  so far: {dict(faults.kills)} {dict(faults.done)}", flush=True)
        await asyncio.sleep(args.gap * 2)
    return poisoned


async def storm(stack: Stack, home: Path, args: argparse.Namespace, mount: Path | None) -> dict[str, Any]:
    """Load and faults together, then calm, then the account."""
    settings = ServiceSettings(
        kafka_bootstrap_servers=stack.kafka_bootstrap_servers,
        kafka_idempotent_producer=stack.kafka_idempotent_producer,
        kafka_fetch_max_wait_ms=20,
    )
    load = Load(stack.gateway_url, workers=args.workers, seed=args.seed)
    faults = Faults(home, settings, args.seed)
    running = asyncio.create_task(load.run())
    async with showing(load, faults):
        kills = asyncio.create_task(faults.kill_at_random(args.kills, list(NAMES), args.gap))
        end = time.monotonic() + args.seconds
        poisoned = await misfortune(faults, args, mount)
        await asyncio.wait({kills}, timeout=max(0.0, end - time.monotonic()))
        kills.cancel()
        load.stop.set()
        await running
    found = await settled(settings, load, faults, home, args.patience)
    health = await asyncio.to_thread(local.status, home)
    letters = {i for r in await all_records(settings) if r.topic == "dead.letters" for i in _letter(r)}
    return report(found, faults, load, poisoned, len(letters), {h.name: h.ready for h in health}, args)


def _letter(record: StreamRecord) -> list[str]:
    try:
        return [json.loads(record.value)["dead_letter_id"]]
    except (ValueError, KeyError, TypeError):
        return []


@contextlib.asynccontextmanager
async def showing(load: Load, faults: Faults) -> AsyncIterator[None]:
    async def show() -> None:
        while True:
            await asyncio.sleep(20)
            print(f"  {len(load.accepted)} accepted, {sum(faults.kills.values())} kills", flush=True)

    task = asyncio.create_task(show())
    try:
        yield
    finally:
        task.cancel()


def report(
    found: Account,
    faults: Faults,
    load: Load,
    poisoned: int,
    letters: int,
    ready: dict[str, bool],
    args: argparse.Namespace,
) -> dict[str, Any]:
    """What runs/chaos.json holds."""
    return {
        "kills": sum(faults.kills.values()),
        "accepted": found.accepted,
        "matched": found.matched,
        "unmatched_counted": found.unmatched_counted,
        "dead_lettered": found.dead_lettered,
        "trained_once": found.trained_once,
        "lost": found.lost,
        "trained_twice": found.trained_twice,
        "dropped_counted": found.dropped_counted,
        "unanswered": found.unanswered,
        "misbound": found.misbound,
        "kills_by_service": dict(faults.kills),
        "faults": dict(faults.done),
        "poison_must_be_dead_letters": poisoned,
        "dead_letters": letters,
        "ends": dict(found.reasons.most_common()),
        "lost_where": {k: v[:20] for k, v in found.lost_where.items()},
        "records": found.records,
        "client_failures": dict(load.failures),
        "sessions": load.sessions,
        "ready_afterwards": ready,
        "seed": args.seed,
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="make chaos", description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=1200.0, help="no kills after that, however many there were")
    parser.add_argument("--gap", type=float, default=1.5, help="mean seconds between kills")
    parser.add_argument("--pause", type=float, default=60.0, help="seconds that the broker is stopped")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument(
        "--patience", type=float, default=90.0, help="seconds without a new record: what is open is lost"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "chaos.json")
    parser.add_argument("--keep", type=Path, help="keep the stack's home and logs there")
    args = parser.parse_args()
    started = time.monotonic()
    with contextlib.ExitStack() as closing:
        home = args.keep or Path(closing.enter_context(tempfile.TemporaryDirectory(prefix="clawback-chaos-")))
        write_model(home / "models" / MODEL)
        spool = home / "small-disk"
        mounted = closing.enter_context(small_disk(spool))
        env = ENV | ({"CLAWBACK_GATEWAY_SPOOL_DIR": str(spool / "spool")} if mounted else {})
        try:
            stack = local.up(home, env=env, on_event=print)
            result = asyncio.run(storm(stack, home, args, spool if mounted else None))
        finally:
            local.down(home)
    result["wall_seconds"] = round(time.monotonic() - started, 1)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n")
    print(json.dumps(result, indent=2, ensure_ascii=False))
    bad = {name: result[name] for name in ("lost", "trained_twice", "misbound") if result[name]}
    if result["dead_letters"] < result["poison_must_be_dead_letters"]:
        bad["poison without a dead letter"] = result["poison_must_be_dead_letters"] - result["dead_letters"]
    if bad:
        print(f"FAILED: {bad}", file=sys.stderr)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
