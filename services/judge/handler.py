"""turns.matched -> turns.judged. An endpoint that is away delays turns; it never makes one neutral and loses none."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import AsyncExitStack, asynccontextmanager

from libs.contracts import TurnJudged, TurnMatched, decode, encode, turns_judged
from libs.errors import DeadLetterError, RetryError
from libs.feedback.attribution import unasked
from libs.feedback.dispatch import records
from libs.feedback.engine import BallotStore, Options, judge_turn
from libs.feedback.judge import Ballot, Judge
from libs.feedback.votes import TooFewVotes
from libs.streams.types import Done, Output, Partition, StreamRecord
from libs.telemetry import metrics
from libs.telemetry.logs import get_logger
from services.judge.fairness import FairSlots
from services.judge.health import EndpointHealth
from services.judge.state import TokenBudget

ENDPOINT_WAIT_SECONDS = 5.0  # a turn waits here for the endpoint before it backs off in the loop
_OUTAGE_TRY = 0.25  # a failed try while the endpoint answers other turns counts a quarter of one that the turn caused

_log = get_logger("judge")


class OverBudget(Exception):
    """The scenario has used up its judge tokens for this window."""


class JudgeHandler:
    """One record in; one record out for the answered turn, and one for each earlier turn that the words are about."""

    def __init__(
        self,
        judge: Judge,
        options: Options,
        *,
        store: BallotStore | None = None,
        budget: TokenBudget | None = None,
        concurrency: int = 32,
        max_attempts: int = 5,
        slot_wait_seconds: float = 50.0,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._judge = judge
        self._options = options
        self._store = store
        self._budget = budget or TokenBudget(None, 0, 3600.0, now)
        self._slots = FairSlots(concurrency)
        self._max_attempts = max_attempts
        self._slot_wait_seconds = slot_wait_seconds
        self._now = now
        self._health = EndpointHealth()
        self._up = asyncio.Event()
        self._up.set()
        self._tries: dict[str, tuple[float, int]] = {}
        metrics.JUDGE_UP.set(1)

    async def handle(self, record: StreamRecord) -> Done:
        """Raises ContractError and DeadLetterError (dead letter), RetryError and TooFewVotes (retry)."""
        matched = decode(record.value, TurnMatched)
        tokens = 0

        def seen(ballot: Ballot) -> None:
            nonlocal tokens
            tokens += ballot.tokens
            self._note(matched.scenario, ballot)

        began = time.perf_counter()
        try:
            judged = await judge_turn(
                self._judge,
                matched,
                self._options,
                now=self._now,
                store=self._store,
                seen=seen,
                around=lambda: self._turn_at_the_judge(matched.scenario),
            )
        except TooFewVotes as error:
            raise self._too_few(record, error) from error
        except OverBudget:
            judged = self._unasked(matched, "judge_budget")
        finally:
            if tokens:
                await self._budget.charge(matched.scenario, tokens)
        self._tries.pop(record.id, None)
        metrics.JUDGE_SECONDS.observe(time.perf_counter() - began)
        for j in judged:
            metrics.JUDGED.labels(j.scenario, str(j.verdict), j.disposition, j.reason).inc()
            metrics.JUDGE_HINTS.labels(j.scenario).inc(len(j.hints))
        return Done(outputs=tuple(_output(j) for j in judged))

    async def tick(self) -> None:
        return None

    async def revoked(self, partitions: Collection[Partition]) -> None:
        self._tries.clear()

    async def ready(self) -> None:
        """Raise RetryError while the endpoint is away."""
        if self._health.down:
            raise RetryError(f"the judge endpoint is away: {self._health.reason}", reason="judge_down")

    @asynccontextmanager
    async def _turn_at_the_judge(self, scenario: str) -> AsyncIterator[None]:
        if not await self._budget.left(scenario):
            raise OverBudget
        async with AsyncExitStack() as stack:
            try:
                async with asyncio.timeout(self._slot_wait_seconds):
                    await stack.enter_async_context(self._slots.hold(scenario))
            except TimeoutError:
                raise RetryError("no slot at the judge came free in time", reason="judge_busy") from None
            if not self._health.may_ask(time.monotonic()):
                await self._wait_for_endpoint()
            yield

    async def _wait_for_endpoint(self) -> None:
        try:
            async with asyncio.timeout(ENDPOINT_WAIT_SECONDS):
                await self._up.wait()
        except TimeoutError:
            raise RetryError(f"the judge endpoint is away: {self._health.reason}", reason="judge_down") from None

    def _note(self, scenario: str, ballot: Ballot) -> None:
        if ballot.abstained:
            metrics.JUDGE_ABSTENTIONS.labels(scenario, self._judge.name, ballot.abstained).inc()
        metrics.JUDGE_VOTES.labels(self._judge.name, "abstained" if ballot.abstained else "valid").inc()
        if ballot.outage:
            if self._health.failed(ballot.abstained, time.monotonic()):
                self._up.clear()
                metrics.JUDGE_UP.set(0)
                _log.error("the judge endpoint is away: turns wait", reason=ballot.abstained)
        elif self._health.answered():
            self._up.set()
            metrics.JUDGE_UP.set(1)
            _log.info("the judge endpoint is back")

    def _too_few(self, record: StreamRecord, error: TooFewVotes) -> RetryError | DeadLetterError:
        """Retry, or give the turn up once it has failed often enough while the endpoint was well."""
        tries, answers = self._tries.get(record.id, (0.0, self._health.answers))
        if not error.outage:
            tries += 1.0
        elif self._health.answers > answers:
            tries += _OUTAGE_TRY
        if tries >= self._max_attempts:
            self._tries.pop(record.id, None)
            return DeadLetterError(f"given up after {self._max_attempts} tries: {error}", reason="too_few_votes")
        self._tries[record.id] = (tries, self._health.answers)
        return error

    def _unasked(self, matched: TurnMatched, reason: str) -> list[TurnJudged]:
        return records(
            matched,
            [unasked(matched, reason)],
            self._judge,
            judged_at=self._now(),
            weights=self._options.weights,
            require_capture=self._options.require_capture,
        )


def _output(judged: TurnJudged) -> Output:
    return Output(turns_judged.TOPIC, judged.scenario, encode(judged))
