"""Settings of the monitor."""

from __future__ import annotations

from pydantic import AliasChoices, Field, model_validator

from libs.streams.config import ServiceSettings


class MonitorSettings(ServiceSettings):
    """CLAWBACK_MONITOR_<FIELD>. The session TTL must be the matcher's: it decides when an unanswered turn expires."""

    monitor_group: str = Field(default="clawback-monitor", description="prefix of its consumer group")
    monitor_session_ttl_seconds: float = Field(
        default=86_400.0,
        gt=0,
        validation_alias=AliasChoices("CLAWBACK_MONITOR_SESSION_TTL_SECONDS", "CLAWBACK_MATCHER_TTL_SECONDS"),
    )
    monitor_retention_seconds: float = Field(
        default=172_800.0, gt=0, description="turns older than this are let go; longer than the session TTL"
    )
    monitor_max_exchanges: int = Field(default=200_000, ge=1_000, description="kept in memory; the oldest go first")
    monitor_max_conversation_bytes: int = Field(
        default=64 * 1024 * 1024, ge=0, description="text kept for the Inspector; 0 keeps none"
    )
    monitor_lag_groups: dict[str, str] = Field(
        default={
            "clawback-matcher": "traffic.raw",
            "clawback-judge": "turns.matched",
            "clawback-batcher": "turns.judged",
        },
        description="JSON: consumer group to watch -> the topic that it reads",
    )
    monitor_lag_interval_seconds: float = Field(default=5.0, gt=0)

    @model_validator(mode="after")
    def _keeps_what_may_expire(self) -> MonitorSettings:
        if self.monitor_retention_seconds <= self.monitor_session_ttl_seconds:
            raise ValueError(
                "CLAWBACK_MONITOR_RETENTION_SECONDS must exceed the session TTL "
                f"({self.monitor_session_ttl_seconds:g} s), or no turn is ever seen to expire"
            )
        return self
