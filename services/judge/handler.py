"""turns.matched -> turns.judged."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

from libs.contracts import TurnJudged, TurnMatched, decode, encode, turns_judged
from libs.feedback.engine import Options, judge_turn
from libs.feedback.judge import Judge
from libs.streams.types import Done, Output, Partition, StreamRecord


class JudgeHandler:
    """One record in, one record out for the answered turn, and one more for each earlier turn that the words are about."""

    def __init__(
        self, judge: Judge, options: Options, *, max_attempts: int = 5, now: Callable[[], float] = time.time
    ) -> None:
        self._judge = judge
        self._options = options
        self._max_attempts = max_attempts
        self._now = now

    async def handle(self, record: StreamRecord) -> Done:
        """Raises ContractError (dead letter) and TooFewVotes (retry)."""
        matched = decode(record.value, TurnMatched)
        judged = await judge_turn(self._judge, matched, self._options, now=self._now)
        return Done(outputs=tuple(_output(j) for j in judged))

    async def tick(self) -> None:
        return None

    async def revoked(self, partitions: Collection[Partition]) -> None:
        return None


def _output(judged: TurnJudged) -> Output:
    return Output(turns_judged.TOPIC, judged.scenario, encode(judged))
