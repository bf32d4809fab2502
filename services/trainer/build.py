"""Puts the trainer together from its settings. Imports torch."""

from __future__ import annotations

from typing import Any

import torch

from libs.errors import ConfigError
from libs.learning.checkpoint import base_digest
from libs.learning.gate import Prober
from libs.learning.guard import GuardLimits
from libs.learning.model import ModelConfig, Policy, load_policy
from libs.learning.objective import ObjectiveConfig, check_coefficients
from libs.learning.probes import PROBES, GateLimits
from libs.learning.update import StepConfig
from services.trainer.config import TrainerSettings
from services.trainer.handler import TrainerHandler
from services.trainer.learner import Learner, LearnerOptions
from services.trainer.store import Store


def objective_of(s: TrainerSettings) -> ObjectiveConfig:
    """The objective as configured. Raises ConfigError when a configured coefficient cannot reach the loss."""
    config = ObjectiveConfig(
        w_rl=s.trainer_w_rl,
        w_opd=s.trainer_w_opd,
        kl_coef=s.trainer_kl_coef,
        anchor_coef=s.trainer_anchor_coef,
        clip_low=s.trainer_clip_low,
        clip_high=s.trainer_clip_high,
        clamp=s.trainer_clamp,
        top_k=s.trainer_top_k,
        selection=s.trainer_selection,
        subset=s.trainer_subset,
    )
    check_coefficients(config)
    return config


def guard_of(s: TrainerSettings) -> GuardLimits | None:
    """The collapse guard's limits, or None when it is off."""
    if not s.trainer_guard:
        return None
    return GuardLimits(
        min_entropy=s.trainer_guard_min_entropy,
        max_entropy=s.trainer_guard_max_entropy,
        max_kl=s.trainer_guard_max_kl,
        max_looping=s.trainer_guard_max_looping,
    )


def prober_of(s: TrainerSettings, policy: Policy, tokenizer: Any) -> Prober | None:
    """The gate's probes, or None when it is off. Raises ConfigError when the file holds no prompt."""
    if not s.trainer_gate:
        return None
    probes: tuple[str, ...] = PROBES
    if s.trainer_gate_probes is not None:
        if not s.trainer_gate_probes.exists():
            raise ConfigError(f"CLAWBACK_TRAINER_GATE_PROBES: no file {s.trainer_gate_probes}")
        lines = s.trainer_gate_probes.read_text(encoding="utf-8").splitlines()
        probes = tuple(line.strip() for line in lines if line.strip())
    if not probes:
        raise ConfigError(f"CLAWBACK_TRAINER_GATE_PROBES: {s.trainer_gate_probes} holds no prompt")
    return Prober(policy, tokenizer, probes, endless_tokens=s.trainer_gate_endless_tokens)


def build(s: TrainerSettings) -> TrainerHandler:
    """Load the model and the checkpoints' state. Raises ConfigError or StopError, naming the fix."""
    if s.trainer_threads:
        torch.set_num_threads(s.trainer_threads)
    objective = objective_of(s)
    policy, tokenizer = load_policy(
        ModelConfig(
            path=s.model_path,
            mode=s.trainer_mode,
            lora_rank=s.trainer_lora_rank,
            lora_alpha=s.trainer_lora_alpha,
            dtype=s.trainer_dtype,
            device=s.trainer_device,
            seed=s.trainer_seed,
            checkpoint_activations=s.trainer_checkpoint_activations,
        )
    )
    store = Store(s.home, base_digest(s.model_path))
    step = StepConfig(
        learning_rate=s.trainer_learning_rate,
        weight_decay=s.trainer_weight_decay,
        max_grad_norm=s.trainer_max_grad_norm,
        chunk_rows=s.trainer_chunk_rows,
        pack_tokens=s.trainer_pack_tokens,
    )
    options = LearnerOptions(
        max_staleness=s.trainer_max_staleness,
        max_sample_tokens=s.trainer_max_sample_tokens,
        skip_accepted=s.trainer_skip_accepted,
        max_loaded=s.trainer_max_loaded,
        keep_releases=s.trainer_keep_releases,
        drift_max=s.trainer_drift_max,
        guard=guard_of(s),
        gate=GateLimits(
            max_failed=s.trainer_gate_max_failed,
            max_failed_total=s.trainer_gate_max_failed_total,
            max_repetition=s.trainer_gate_max_repetition,
            max_kl=s.trainer_gate_max_kl,
            max_logp_loss=s.trainer_gate_max_logp_loss,
        ),
    )
    prober = prober_of(s, policy, tokenizer)
    learner = Learner(policy, tokenizer, store, objective, step, options, prober)
    learner.warm_up()
    return TrainerHandler(learner, store)
