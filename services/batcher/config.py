"""The batcher's settings: environment variables named CLAWBACK_<FIELD>."""

from __future__ import annotations

from pydantic import Field

from libs.streams.config import ServiceSettings


class BatcherSettings(ServiceSettings):
    """Everything that one batcher process needs."""

    batcher_batch_size: int = Field(default=4, ge=1, le=1024, description="turns to one optimizer step")
    batcher_max_age_seconds: float = Field(default=60.0, gt=0, description="a turn waits no longer for its batch")
    batcher_max_staleness: int = Field(default=4, ge=0, description="releases that may have served since a turn's own")
    batcher_max_bytes: int = Field(default=4 * 1024 * 1024, ge=1024, description="of one batch's judged records")
    batcher_remember_seconds: int = Field(
        default=14 * 24 * 3600, ge=60, description="how long a batched turn is recognised: the topic's retention"
    )
