"""Settings of the matcher, from CLAWBACK_MATCHER_<FIELD>."""

from __future__ import annotations

from pydantic import Field

from libs.matching.plan import Limits
from libs.streams.config import ServiceSettings


class MatcherSettings(ServiceSettings):
    """Bounds of the matching state; see docs/matching.md for what each one costs and loses."""

    # Enough that the waits for Redis and for the broker's acknowledgement overlap; each holds one exchange in memory.
    stream_max_in_flight: int = Field(default=128, ge=1, description="exchanges matched at once per process")
    matcher_ttl_seconds: float = Field(default=86_400.0, gt=0, description="a reply may be answered this long after it")
    matcher_tombstone_seconds: float = Field(
        default=7 * 86_400.0, gt=0, description="that long an answer that came too late is told from an unknown one"
    )
    matcher_max_sessions: int = Field(default=200_000, ge=1, description="open sessions per tenant and scenario")
    matcher_max_turns: int = Field(default=64, ge=2, description="exchanges kept per session")
    matcher_max_session_bytes: int = Field(default=4 * 1024 * 1024, ge=1024)
    matcher_earlier_turns: int = Field(default=8, ge=0, description="earlier turns that a matched turn carries")
    matcher_earlier_bytes: int = Field(default=256 * 1024, ge=0, description="requests and captures of those, together")

    def limits(self) -> Limits:
        """The same as the matching library takes them."""
        return Limits(
            ttl_seconds=self.matcher_ttl_seconds,
            tombstone_seconds=max(self.matcher_tombstone_seconds, self.matcher_ttl_seconds),
            max_sessions=self.matcher_max_sessions,
            max_turns=self.matcher_max_turns,
            max_session_bytes=self.matcher_max_session_bytes,
            earlier_turns=self.matcher_earlier_turns,
            earlier_bytes=self.matcher_earlier_bytes,
        )
