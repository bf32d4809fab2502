"""Before the first batch: what the log of releases already says."""

from __future__ import annotations

import asyncio
import time

from libs.contracts import PolicyRelease, decode
from libs.errors import ContractError, RetryError, StopError
from libs.streams.config import ServiceSettings
from libs.streams.follow import read
from libs.streams.retry import Backoff

_PATIENCE_SECONDS = 300.0


async def batches_in_log(settings: ServiceSettings, topic: str) -> set[str]:
    """Ids of the batches that the log of releases names. Waits for a broker that is away.

    Raises StopError (reason "kafka_read") when it stays away for five minutes.
    """
    backoff, attempt, until = Backoff(), 0, time.monotonic() + _PATIENCE_SECONDS
    while True:
        try:
            return {
                event.batch_id
                async for record in read(settings, [topic])
                if record is not None and (event := _event(record.value)) is not None and event.batch_id
            }
        except RetryError as error:
            if time.monotonic() > until:
                raise StopError(f"the broker stays away: {error}", reason=error.reason) from error
            await asyncio.sleep(backoff.delay(attempt))
            attempt += 1


def _event(value: bytes) -> PolicyRelease | None:
    try:
        return decode(value, PolicyRelease)
    except ContractError:
        return None  # the policy reports it; here it only names no batch
