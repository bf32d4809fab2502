"""The trainer's settings: CLAWBACK_TRAINER_<NAME>. Defaults are what docs/learning.md measured to work."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import Field

from libs.errors import ConfigError
from libs.streams.config import ServiceSettings, load

_PREFIX = "CLAWBACK_TRAINER_"


class TrainerSettings(ServiceSettings):
    home: Path = Field(default=Path(".clawback"), description="local state; checkpoints lie in <home>/checkpoints")
    # A step may take minutes on a large model; its record is neither repeated nor counted as stuck meanwhile.
    stream_max_in_flight: int = Field(default=8, ge=1, description="batches that wait for their turn, fair by scenario")
    stream_handle_timeout_seconds: float = Field(default=7200.0, gt=0)
    stream_drain_seconds: float = Field(default=300.0, gt=0, description="a step in progress is finished on SIGTERM")
    kafka_rebalance_timeout_ms: int = Field(default=330_000, ge=1_000)

    trainer_model: Path | None = Field(default=None, description="model directory; <home>/models/smollm2-135m-instruct")
    trainer_mode: Literal["lora", "full"] = "lora"
    trainer_lora_rank: int = Field(default=32, ge=1)
    trainer_lora_alpha: int = Field(default=64, ge=1)
    trainer_device: str = "cpu"
    trainer_dtype: Literal["float32", "bfloat16"] = "float32"
    trainer_threads: int = Field(default=0, ge=0, description="torch threads; 0 leaves the choice to torch")
    trainer_seed: int = 0

    trainer_learning_rate: float = Field(default=1e-3, gt=0)
    trainer_weight_decay: float = Field(default=0.0, ge=0)
    trainer_max_grad_norm: float = Field(default=1.0, gt=0)
    trainer_w_rl: float = Field(default=1.0, ge=0)
    trainer_w_opd: float = Field(default=1.0, ge=0)
    trainer_kl_coef: float = Field(default=0.1, ge=0)
    trainer_anchor_coef: float = Field(default=0.0, ge=0)
    trainer_clip_low: float = Field(default=0.2, gt=0, lt=1)
    trainer_clip_high: float = Field(default=0.28, gt=0)
    trainer_clamp: float = Field(default=1.0, gt=0, description="nats, bound of the teacher's advantage")
    trainer_top_k: int = Field(default=4, ge=1)
    trainer_selection: Literal["sequence_optimal", "token_optimal", "shortest"] = "sequence_optimal"
    trainer_subset: Literal["student", "teacher", "overlap"] = "student"
    trainer_skip_accepted: bool = Field(default=True, description="a batch in which nothing was rejected moves nothing")

    trainer_max_staleness: int = Field(default=4, ge=0, description="releases between a sample's and the serving one")
    trainer_max_sample_tokens: int = Field(default=4096, ge=2, description="prompt plus response; longer is dropped")
    trainer_chunk_rows: int = Field(default=128, ge=1)
    trainer_pack_tokens: int = Field(default=4096, ge=1)
    trainer_checkpoint_activations: bool = False

    trainer_drift_max: float = Field(default=0.05, gt=0, description="nats, mean |captured - recomputed|: alarm")
    trainer_guard: bool = Field(default=True, description="refuse to train a policy that has collapsed")
    trainer_guard_min_entropy: float = Field(default=0.02, ge=0, description="nats per token")
    trainer_guard_max_entropy: float = Field(default=6.0, gt=0)
    trainer_guard_max_kl: float = Field(default=5.0, gt=0, description="nats per token from the base")
    trainer_guard_max_looping: float = Field(default=0.5, gt=0, le=1, description="share of served replies that loop")
    trainer_gate: bool = Field(default=True, description="compare a release with the serving one before it serves")
    trainer_gate_probes: Path | None = Field(default=None, description="one prompt a line; built-in ones if not set")
    trainer_gate_endless_tokens: int = Field(default=96, ge=8, description="an answer longer than this has no end")
    trainer_gate_max_failed: float = Field(default=0.34, ge=0, lt=1, description="share of probes that newly fail")
    trainer_gate_max_failed_total: float = Field(
        default=0.5, ge=0, lt=1, description="share of probes that fail at all"
    )
    trainer_gate_max_repetition: float = Field(default=0.5, gt=0, le=1)
    trainer_gate_max_kl: float = Field(default=3.0, gt=0, description="nats per token from the base")
    trainer_gate_max_logp_loss: float = Field(default=2.0, gt=0, description="nats per token under the base")

    trainer_max_loaded: int = Field(default=4, ge=1, description="scenarios in memory; the others are on disk")
    trainer_keep_releases: int = Field(default=8, ge=2, description="newest releases kept; serving and parent always")

    @property
    def model_path(self) -> Path:
        return self.trainer_model or self.home / "models" / "smollm2-135m-instruct"


def load_settings(environment: Mapping[str, str] | None = None) -> TrainerSettings:
    """Settings from the environment. Raises ConfigError also for a CLAWBACK_TRAINER_ variable that nothing reads:

    a mistyped coefficient would otherwise silently train with the default.
    """
    known = {f"CLAWBACK_{name.upper()}" for name in TrainerSettings.model_fields}
    unread = [n for n in (environment or os.environ) if n.startswith(_PREFIX) and n not in known]
    if unread:
        raise ConfigError(f"{', '.join(sorted(unread))}: no such setting; see services/trainer/README.md for the names")
    return load(TrainerSettings)
