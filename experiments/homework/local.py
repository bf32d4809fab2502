"""A local stack around a run: started before, stopped after, whatever happens in between."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Coroutine, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from deploy.local import stack as local
from deploy.local.state import Stack
from experiments.homework.progress import Progress
from experiments.homework.watch import MAX_STALENESS

T = TypeVar("T")

# Settings that a run depends on; they stand here so that it does not change when a default does.
SERVICE_ENV: dict[str, str] = {
    "CLAWBACK_BATCHER_BATCH_SIZE": "4",
    "CLAWBACK_BATCHER_MAX_AGE_SECONDS": "1800",  # only full batches: the same steps on a slow and on a fast machine
    "CLAWBACK_BATCHER_MAX_STALENESS": str(MAX_STALENESS),
    "CLAWBACK_TRAINER_MAX_STALENESS": str(MAX_STALENESS),
    "CLAWBACK_JUDGE_KIND": "rules",
}

# The local broker answers an empty fetch only after this wait, so a short one keeps it and every consumer busy. A tenth
# of a second is nothing beside the seconds that a reply takes, and leaves the cores to the model.
FETCH_WAIT = {"CLAWBACK_KAFKA_FETCH_MAX_WAIT_MS": "100"}


@contextlib.contextmanager
def local_stack(home: Path, progress: Progress, env: Mapping[str, str]) -> Iterator[Stack]:
    """Bring up the stack of `home`, yield it, stop it. Raises ConfigError with the fix when it cannot start.

    SIGTERM raises KeyboardInterrupt, also while the stack still starts: nothing is left running.
    """
    progress.doing("starting broker, Redis and services")
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield local.up(
            home,
            env={**SERVICE_ENV, **env},
            service_env=dict.fromkeys(local.NAMES, FETCH_WAIT),
            on_event=progress.doing,
        )
    finally:
        progress.doing("stopping what was started")
        with _no_interrupt():
            local.down(home)
        signal.signal(signal.SIGTERM, before)


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


@contextlib.contextmanager
def _no_interrupt() -> Iterator[None]:
    """A second Ctrl-C or SIGTERM while stopping must not leave processes behind."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run_interruptible(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine; SIGTERM ends it like Ctrl-C, with its clean-up. Raises KeyboardInterrupt then."""

    async def main() -> T:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        return await work

    try:
        return asyncio.run(main())
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
