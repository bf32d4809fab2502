"""Is the judge's endpoint there? Told from the ballots themselves; pure, time passed in (monotonic seconds)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class EndpointHealth:
    """Down after `failures_to_down` outages in a row; up again with one answer. While down, one probe at a time is let
    through, at intervals that double from `first_probe_seconds` to `last_probe_seconds`.
    """

    failures_to_down: int = 5
    first_probe_seconds: float = 0.5
    last_probe_seconds: float = 15.0
    down: bool = False
    answers: int = 0  # answers ever: tells a later try of a turn whether the endpoint has been well in between
    reason: str = ""
    _failures: int = 0
    _interval: float = 0.0
    _next_probe: float = 0.0

    def answered(self) -> bool:
        """Note an answer; True when this ends an outage."""
        ended, self.down = self.down, False
        self.answers += 1
        self._failures = 0
        self._interval = 0.0
        return ended

    def failed(self, reason: str, now: float) -> bool:
        """Note an outage; True when this begins one."""
        self._failures += 1
        self.reason = reason
        if self._failures < self.failures_to_down:
            return False
        began, self.down = not self.down, True
        self._interval = min(self.last_probe_seconds, max(self.first_probe_seconds, self._interval * 2))
        self._next_probe = now + self._interval
        return began

    def may_ask(self, now: float) -> bool:
        """A turn may go to the endpoint now. While down, True at most once per interval."""
        if not self.down:
            return True
        if now < self._next_probe:
            return False
        self._next_probe = now + max(self._interval, self.first_probe_seconds)
        return True
