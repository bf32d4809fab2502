"""The engine in a thread of its own. Requests go in through an inbox, tokens come back to the event loop in steps."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from types import TracebackType

from libs.learning.engine.engine import Engine
from libs.learning.engine.sequence import Release, Request, Step
from libs.learning.engine.sequence import Sequence as Running
from libs.telemetry import metrics
from libs.telemetry.logs import get_logger
from services.policy.errors import ApiError

_log = get_logger("policy.worker")
_MAX_FAILURES = 3  # steps in a row; the process then gives up, a supervisor starts a clean one


class Live:
    """One request's sequences. Iterate for (choice index, step); leaving the block cancels what still runs."""

    def __init__(self, worker: EngineWorker, requests: Sequence[Request]) -> None:
        self._worker = worker
        self.requests = requests
        self.sequences: list[Running] = []  # filled by the engine's thread
        self.steps: asyncio.Queue[tuple[int, Step]] = asyncio.Queue()
        self.open = set(range(len(requests)))
        self.cached_tokens = 0

    def __enter__(self) -> Live:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self.open:
            self._worker.cancel(self)

    async def __aiter__(self) -> AsyncIterator[tuple[int, Step]]:
        while self.open:
            index, step = await self.steps.get()
            if step.finish is not None:
                self.open.discard(index)
            yield index, step


class EngineWorker:
    """Owns the engine's thread. Public methods belong to the event loop's thread."""

    def __init__(self, engine: Engine, max_waiting: int) -> None:
        self._engine = engine
        self._max_open = engine.limits.max_batch + max_waiting
        self._open = 0
        self._inbox: deque[Callable[[], None]] = deque()
        self._wake = threading.Event()
        self._stopping = False
        self._owners: dict[Running, tuple[Live, int]] = {}
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._request_seconds = 5.0  # moving average, for Retry-After
        self.failed = asyncio.Event()
        self.empty = asyncio.Event()  # set while no sequence is open
        self.empty.set()

    def start(self) -> None:
        self._thread.start()

    async def stop(self) -> None:
        """End the thread after its current step."""
        self._stopping = True
        self._wake.set()
        await asyncio.to_thread(self._thread.join)

    def submit(self, requests: Sequence[Request]) -> Live:
        """Queue the choices of one request. Raises ApiError 429 when too many wait already."""
        if self._open + len(requests) > self._max_open:
            wait = max(1, min(60, round(self._request_seconds)))
            raise ApiError(429, "the server is at its limit of waiting requests", retry_after_seconds=wait)
        live = Live(self, requests)
        self._count(len(requests))
        self._send(lambda: self._enter(live))
        return live

    def cancel(self, live: Live) -> None:
        """Stop what still runs of a request whose client has gone."""

        def mark() -> None:
            for sequence in live.sequences:
                sequence.cancelled = True

        self._send(mark)

    def forget_releases(self, serving: Iterable[Release]) -> None:
        """Drop cached prompts of releases that serve no more."""
        kept = list(serving)
        self._send(lambda: self._engine.forget_releases(kept))

    @property
    def open(self) -> int:
        return self._open

    def observe(self, seconds: float) -> None:
        """A request took this long from submission to its end."""
        self._request_seconds += 0.1 * (seconds - self._request_seconds)

    # --- the engine's thread -------------------------------------------------------------------------------------

    def _send(self, job: Callable[[], None]) -> None:
        self._inbox.append(job)
        self._wake.set()

    def _enter(self, live: Live) -> None:
        for index, request in enumerate(live.requests):
            sequence = self._engine.submit(request)
            live.sequences.append(sequence)
            self._owners[sequence] = (live, index)

    def _run(self) -> None:
        try:
            self._work()
        finally:
            if not self._stopping:
                self._loop.call_soon_threadsafe(self.failed.set)

    def _work(self) -> None:
        failures = 0
        while not self._stopping:
            while self._inbox:
                self._inbox.popleft()()
            if self._engine.idle:
                self._gauges()
                self._wake.wait()
                self._wake.clear()
                continue
            started = time.perf_counter()
            try:
                news = self._engine.step()
                failures = 0
            except Exception:
                failures += 1
                _log.exception("a step failed; its requests end with an error", failures=failures)
                news = self._engine.abort()
            metrics.POLICY_STEP_SECONDS.observe(time.perf_counter() - started)
            self._deliver([(*self._owner(sequence, step), sequence.reused) for sequence, step in news])
            self._gauges()
            if failures >= _MAX_FAILURES:
                return

    def _owner(self, sequence: Running, step: Step) -> tuple[Live, int, Step]:
        live, index = self._owners[sequence] if step.finish is None else self._owners.pop(sequence)
        return live, index, step

    def _deliver(self, news: list[tuple[Live, int, Step, int]]) -> None:
        def hand_over() -> None:
            for live, index, step, cached in news:
                live.cached_tokens = max(live.cached_tokens, cached)
                live.steps.put_nowait((index, step))
            self._count(-sum(step.finish is not None for _, _, step, _ in news))

        if news:
            self._loop.call_soon_threadsafe(hand_over)

    def _count(self, change: int) -> None:
        self._open += change
        if self._open:
            self.empty.clear()
        else:
            self.empty.set()

    def _gauges(self) -> None:
        metrics.POLICY_RUNNING.set(self._engine.running)
        metrics.POLICY_WAITING.set(self._engine.waiting)
        metrics.POLICY_KV_TOKENS.set(self._engine.kv_tokens)
