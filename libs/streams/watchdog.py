"""Notices a consumer that gets nothing although the broker has something for it, and tells how far behind it is."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping

from libs.errors import RetryError, StopError
from libs.streams.backend import Consumer
from libs.streams.offsets import OffsetTracker
from libs.streams.types import Partition
from libs.telemetry import metrics
from libs.telemetry.logs import get_logger


class Watchdog:
    """`alive` is called on every sign of life; `watch` raises StopError after stall_seconds without one.

    An absent broker, an empty topic and a rebalance are no stall.
    """

    def __init__(
        self,
        service: str,
        consumer: Consumer,
        trackers: Mapping[Partition, OffsetTracker],
        stall_seconds: float,
        rebalancing: Callable[[], bool],
    ) -> None:
        self._service = service
        self._consumer = consumer
        self._trackers = trackers
        self._stall_seconds = stall_seconds
        self._rebalancing = rebalancing
        self._log = get_logger(f"streams.{service}")
        self._last = time.monotonic()

    def alive(self) -> None:
        """A record was fetched, or there is a good reason that none is."""
        self._last = time.monotonic()

    async def watch(self) -> None:
        """Until cancelled. Raises StopError ("stalled")."""
        while True:
            await asyncio.sleep(min(5.0, self._stall_seconds / 4))
            try:
                unread = await self._consumer.unread()
            except RetryError as error:
                self._log.warning("the broker does not say how far behind this is", error=str(error))
                self.alive()
                continue
            self._show(unread)
            quiet = time.monotonic() - self._last
            if self._rebalancing() or not any(unread.values()):
                self.alive()
            elif quiet > self._stall_seconds:
                raise StopError(
                    f"no record for {quiet:.0f} s although {sum(unread.values())} wait: restarting", reason="stalled"
                )

    def _show(self, unread: Mapping[Partition, int]) -> None:
        for (topic, partition), count in unread.items():
            tracker = self._trackers.get((topic, partition))
            metrics.LAG.labels(self._service, topic, str(partition)).set(count + (len(tracker) if tracker else 0))
