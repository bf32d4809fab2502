"""The policy server's settings: CLAWBACK_POLICY_<NAME>."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from libs.streams.config import ServiceSettings


class PolicySettings(ServiceSettings):
    home: Path = Field(default=Path(".clawback"), description="local state: the model lies in <home>/models")

    policy_engine: Literal["builtin", "vllm", "sglang"] = Field(
        default="builtin", description="vllm, sglang: stand before such a server, name the release of each request"
    )
    policy_engine_url: str = Field(default="http://127.0.0.1:8000", description="root of the vLLM or SGLang server")
    policy_engine_api_key: str | None = Field(default=None, repr=False)
    policy_engine_paths: str = Field(default="", description="HERE=THERE: where the engine sees the checkpoints")
    policy_engine_max_adapters: int = Field(default=8, ge=1, description="adapters loaded at once")
    policy_engine_timeout_seconds: float = Field(default=600.0, gt=0, description="longest silence of the engine")

    policy_model: Path | None = Field(default=None, description="model directory; <home>/models/smollm2-135m-instruct")
    policy_model_name: str = Field(default="", description="as /v1/models lists it; the directory's name when empty")
    policy_device: str = "cpu"
    policy_dtype: Literal["float32", "bfloat16"] = Field(
        default="float32", description="float32 agrees with the trainer and is the faster one on a CPU"
    )
    policy_threads: int = Field(default=0, ge=0, description="torch threads; 0 leaves the choice to torch")
    policy_releases_topic: str = "policy.releases"
    policy_follow_releases: bool = Field(default=True, description="off: serve the base only, without a broker")

    policy_context_tokens: int = Field(default=0, ge=0, description="prompt and reply; 0: what the model was made for")
    policy_default_max_tokens: int = Field(default=1024, ge=1, description="reply limit when a request names none")
    policy_max_batch: int = Field(default=32, ge=1, description="sequences that run at once")
    policy_max_waiting: int = Field(default=128, ge=1, description="sequences that may wait; more are answered 429")
    policy_kv_tokens: int = Field(default=65_536, ge=256, description="tokens of key/value memory")
    policy_prefix_tokens: int = Field(default=8_192, ge=0, description="tokens of prompts kept for reuse; 0 is off")
    policy_prefill_tokens: int = Field(default=256, ge=1, description="prompt tokens per step beside running replies")
    policy_resident_megabytes: int = Field(default=2_048, ge=1, description="releases in memory; the others on disk")
    policy_retry_seconds: float = Field(default=30.0, gt=0, description="pause before a refused release is tried again")
    policy_drain_seconds: float = Field(default=60.0, gt=0, description="open requests may finish on SIGTERM")

    @property
    def model_path(self) -> Path:
        return self.policy_model or self.home / "models" / "smollm2-135m-instruct"

    @property
    def model_name(self) -> str:
        return self.policy_model_name or self.model_path.name
