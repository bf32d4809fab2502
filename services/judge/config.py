"""Settings of the judge, from CLAWBACK_JUDGE_*."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from libs.streams.config import ServiceSettings


class JudgeSettings(ServiceSettings):
    # Wider than the slots at the endpoint, so that fairness has several scenarios to choose from.
    stream_max_in_flight: int = Field(default=256, ge=1, description="turns taken from the topic at once")

    judge_kind: Literal["rules", "prm"] = "rules"
    judge_window: int = Field(default=8, ge=0, le=64, description="earlier turns shown to the judge")
    judge_require_capture: bool = Field(default=True, description="off: turns without capture count as signal too")
    judge_votes: int = Field(
        default=3, ge=1, le=15, description="m; a judge whose votes are all the same is asked once"
    )
    judge_votes_needed: int = Field(default=0, ge=0, le=15, description="valid votes for an outcome; 0: more than half")
    judge_turn_timeout_seconds: float = Field(default=60.0, gt=0, description="for all votes on one turn")
    judge_max_attempts: int = Field(
        default=5, ge=1, description="tries of a turn with too few valid votes while the judge answers other turns"
    )

    judge_weight_moved_on: float = Field(default=0.5, ge=0, le=1, description="acceptance by going on, without a word")
    judge_weight_tool_success: float = Field(default=0.1, ge=0, le=1)
    judge_weight_tool_failure: float = Field(default=0.5, ge=0, le=1)
    judge_weight_regeneration: float = Field(default=0.5, ge=0, le=1)
    judge_weight_branch: float = Field(default=0.25, ge=0, le=1)

    judge_cache_ttl_seconds: int = Field(
        default=86_400, ge=0, description="results by content, in Redis; 0 turns it off"
    )
    judge_budget_tokens: int = Field(
        default=0, ge=0, description="judge tokens a scenario may use per window; 0: no bound"
    )
    judge_budget_window_seconds: float = Field(default=3600.0, gt=0)
    judge_record_votes_path: str = Field(default="", description="append each question's votes to this JSONL file")

    judge_prm_url: str = Field(
        default="", description="base URL of an OpenAI-compatible server, e.g. http://prm:8000/v1"
    )
    judge_prm_model: str = ""
    judge_prm_api_key: str = Field(default="", repr=False)
    judge_prm_temperature: float = Field(default=0.6, ge=0, le=2)
    judge_prm_top_p: float = Field(default=0.95, gt=0, le=1)
    judge_prm_max_tokens: int = Field(default=1024, ge=64)
    judge_prm_call_timeout_seconds: float = Field(default=30.0, gt=0)
    judge_prm_max_concurrency: int = Field(default=32, ge=1)
    judge_prm_structured: Literal["auto", "on", "off"] = Field(default="auto", description="JSON schema in the request")
    judge_prm_max_prompt_chars: int = Field(default=24_000, ge=2_000)

    @model_validator(mode="after")
    def _prm_needs_a_server(self) -> JudgeSettings:
        if self.judge_kind == "prm" and not (self.judge_prm_url and self.judge_prm_model):
            raise ValueError("judge_kind=prm needs CLAWBACK_JUDGE_PRM_URL and CLAWBACK_JUDGE_PRM_MODEL")
        if self.judge_votes_needed > self.judge_votes:
            raise ValueError("CLAWBACK_JUDGE_VOTES_NEEDED must not exceed CLAWBACK_JUDGE_VOTES")
        if self.slot_wait_seconds < 1:
            raise ValueError(
                "CLAWBACK_STREAM_HANDLE_TIMEOUT_SECONDS must exceed CLAWBACK_JUDGE_TURN_TIMEOUT_SECONDS by 12 s: "
                "a turn first waits for a slot and for the endpoint"
            )
        return self

    @property
    def slot_wait_seconds(self) -> float:
        """What is left of the loop's time for one record before its votes: waiting must not look like a fault."""
        return self.stream_handle_timeout_seconds - self.judge_turn_timeout_seconds - 10.0
