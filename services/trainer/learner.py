"""From one training batch to one event: stale and repeated samples out, one step, guard, gate, checkpoint. No broker.

Several scenarios share the model: the trainable tensors and the optimizer of the scenario at work are in the model,
up to `max_loaded` are kept in memory, the others are on disk in their newest release.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from libs.contracts import BASE_RELEASE, Adapter, PolicyRelease, TrainingBatch
from libs.contracts.base import writable
from libs.contracts.policy_releases import Event, release_id_for
from libs.errors import DeadLetterError
from libs.learning.checkpoint import StepRecord, load_optimizer, load_release, optimizer_tensors, save_release
from libs.learning.gate import Prober
from libs.learning.guard import GuardLimits, reply_metrics, verdict
from libs.learning.model import Policy
from libs.learning.objective import ObjectiveConfig
from libs.learning.probes import Answer, GateLimits, GateResult, compare
from libs.learning.samples import Limits, TrainSample, admit, check_unique
from libs.learning.update import Guard, StepConfig, StepResult, run_step
from services.trainer.decode import train_sample
from services.trainer.probe_files import ProbeFiles
from services.trainer.store import ScenarioState, Store

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class LearnerOptions:
    max_staleness: int = 4
    max_sample_tokens: int = 4096
    skip_accepted: bool = True
    max_loaded: int = 4
    keep_releases: int = 8
    drift_max: float = 0.05
    guard: GuardLimits | None = field(default_factory=GuardLimits)
    gate: GateLimits = field(default_factory=GateLimits)


@dataclass(slots=True)
class _Loaded:
    """A scenario's tensors outside the model. `release_id` names the release that they are."""

    release_id: str
    tensors: dict[str, Tensor]
    optimizer: dict[str, Tensor]


class Learner:
    """Not thread-safe: one call at a time."""

    def __init__(
        self,
        policy: Policy,
        tokenizer: Any,
        store: Store,
        objective: ObjectiveConfig,
        step: StepConfig,
        options: LearnerOptions,
        prober: Prober | None = None,
        clock: Clock = time.time,
    ) -> None:
        self.policy, self.tokenizer, self.store = policy, tokenizer, store
        self.objective, self.step, self.options, self._clock = objective, step, options, clock
        self.optimizer = torch.optim.AdamW(
            list(policy.named_trainable().values()), lr=step.learning_rate, weight_decay=step.weight_decay, fused=True
        )
        self._fresh = policy.state()  # an untrained adapter: equals the base
        self._parked: OrderedDict[str, _Loaded] = OrderedDict()
        self._active: tuple[str, str] | None = None  # scenario and release in the model
        self._prober = prober
        self._probed = ProbeFiles(store.root)
        self._limits = Limits(min(options.max_sample_tokens, policy.context_tokens), policy.vocab_size)

    def warm_up(self) -> None:
        """Ask the base the gate's probes, so that the first batch does not wait for it."""
        if self._prober is not None:
            self._base_answers(self._prober)

    def process(self, batch: TrainingBatch, position: dict[str, int]) -> PolicyRelease:
        """The event that this batch ends in. Weights of a released or held one are on disk when this returns."""
        state = self.store.get(batch.scenario)
        samples, dropped = self._select(batch, state)
        reason = self._reason_to_skip(samples)
        if reason is not None:
            return self._event("skipped", batch, state, dropped=dropped, reason=reason)
        self.activate(state)
        before = self._answers(state.chain.serving, state)
        result = run_step(self.policy, self.optimizer, samples, self.objective, self.step, self._guard(samples))
        metrics = {**result.metrics, **self._drift(samples, result, state)}
        if not result.applied:
            kind: Event = "skipped" if result.reason.startswith("guard_") else "failed"
            return self._event(kind, batch, state, dropped=dropped, reason=result.reason, metrics=metrics)
        trained = [s.feedback_id for s in samples]
        release_id = release_id_for(batch.scenario, state.chain.number + 1, batch.batch_id)
        weights = self._save(batch, state, release_id, trained, position)
        self._active = (batch.scenario, release_id)
        gate = self._gate(release_id, weights, before)
        if not gate.passed:
            self._active = None
        return self._event(
            "released" if gate.passed else "held",
            batch,
            state,
            dropped=dropped,
            reason=gate.reason,
            metrics={**metrics, **gate.metrics},
            trained=trained,
            made=(release_id, weights),
        )

    def _guard(self, samples: list[TrainSample]) -> Guard | None:
        """Adds the replies' repetition and length to the step's metrics and refuses to train a collapsed policy."""
        limits = self.options.guard

        def look(metrics: dict[str, float]) -> str | None:
            texts = [self.tokenizer.decode(s.response_ids, skip_special_tokens=True) for s in samples]
            metrics |= reply_metrics(texts, [len(s.response_ids) for s in samples], limits or GuardLimits())
            return verdict(metrics, limits) if limits else None

        return look

    def _answers(self, release_id: str, state: ScenarioState) -> list[Answer] | None:
        """A release's answers to the probes, measured once; it must be the active one. None without a gate."""
        if self._prober is None:
            return None
        if release_id == BASE_RELEASE:
            return self._base_answers(self._prober)
        made = state.chain.releases[release_id].weights
        known = self._probed.get(release_id, made, self._prober)
        if known is None:
            known = self._prober.answers(release_id, made)
            self._probed.put(release_id, made, self._prober, known)
        return known

    def _base_answers(self, prober: Prober) -> list[Answer]:
        known = self._probed.get(BASE_RELEASE, None, prober)
        if known is None:
            known = prober.answers(BASE_RELEASE, None)
            self._probed.put(BASE_RELEASE, None, prober, known)
        return known

    def _gate(self, release_id: str, weights: Adapter, serving: list[Answer] | None) -> GateResult:
        if self._prober is None or serving is None:
            return GateResult(passed=True, signal=False, reason="", metrics={})
        answers = self._prober.answers(release_id, weights)
        self._probed.put(release_id, weights, self._prober, answers)
        result = compare(answers, serving, self._base_answers(self._prober), self.options.gate)
        result.metrics["gate_signal"] = float(result.signal)
        return result

    def failed(self, batch: TrainingBatch, reason: str) -> PolicyRelease:
        """The event of a batch that could not be trained at all."""
        return self._event("failed", batch, self.store.get(batch.scenario), dropped={}, reason=reason)

    def _select(self, batch: TrainingBatch, state: ScenarioState) -> tuple[list[TrainSample], dict[str, str]]:
        """Samples that may train, and why each other one may not."""
        dropped: dict[str, str] = {}
        ready: list[TrainSample] = []
        seen = set(state.trained)
        for sample in batch.samples:
            staleness = state.chain.staleness(sample.release_id)
            if sample.feedback_id in seen:
                dropped[sample.feedback_id] = "repeated"
            elif staleness is None:
                dropped[sample.feedback_id] = "other_branch"
            elif staleness > self.options.max_staleness:
                dropped[sample.feedback_id] = "stale"
            else:
                try:
                    ready.append(train_sample(sample, self.tokenizer))
                except DeadLetterError as error:
                    dropped[sample.feedback_id] = error.reason
        check_unique(ready)
        kept, unfit, _ = admit(ready, self._limits)
        return kept, dropped | unfit

    def _reason_to_skip(self, samples: list[TrainSample]) -> str | None:
        if not samples:
            return "no_samples"
        if self.options.skip_accepted and not any(s.rejected for s in samples):
            return "nothing_rejected"
        return None

    def activate(self, state: ScenarioState, release_id: str | None = None) -> None:
        """Put a release of a scenario (default: the serving one) into the model."""
        scenario, wanted = state.chain.scenario, release_id or state.chain.serving
        if self._active == (scenario, wanted):
            return
        self._park()
        parked = self._parked.pop(scenario, None)
        if parked is not None and parked.release_id == wanted:
            self.policy.load(parked.tensors)
            load_optimizer(self.policy, self.optimizer, parked.optimizer)
        elif wanted == BASE_RELEASE:
            self.policy.load(self._fresh)
            load_optimizer(self.policy, self.optimizer, {})
        else:
            load_release(self.policy, self.optimizer, state.chain.releases[wanted].weights)
        self._active = (scenario, wanted)

    def _park(self) -> None:
        """Keep the active scenario's tensors in memory; the least recently used ones beyond the bound stay on disk."""
        if self._active is None:
            return
        scenario, release_id = self._active
        tensors = optimizer_tensors(self.policy, self.optimizer)
        self._parked[scenario] = _Loaded(release_id, self.policy.state(), {n: t.clone() for n, t in tensors.items()})
        self._parked.move_to_end(scenario)
        while len(self._parked) > self.options.max_loaded - 1:
            self._parked.popitem(last=False)
        self._active = None

    def forget(self) -> None:
        """Drop what is in the model: the next batch starts from its scenario's serving release."""
        self._active = None

    def _drift(self, samples: list[TrainSample], result: StepResult, state: ScenarioState) -> dict[str, float]:
        """Captured against recomputed log-probabilities, over the samples that the present release served."""
        gaps = [
            gap
            for s in samples
            if s.release_id == state.chain.serving and len(s.captured_logp) == len(s.response_ids)
            for captured, own in zip(s.captured_logp, result.logp.get(s.feedback_id, []), strict=True)
            if math.isfinite(gap := abs(float(captured) - own))
        ]
        return {"drift_mean": sum(gaps) / len(gaps), "drift_max": max(gaps)} if gaps else {}

    def _save(
        self, batch: TrainingBatch, state: ScenarioState, release_id: str, trained: list[str], position: dict[str, int]
    ) -> Adapter:
        record = StepRecord(
            release_id=release_id,
            parent_id=state.chain.serving,
            batch_id=batch.batch_id,
            position=position,
            trained=trained,
            config={**asdict(self.objective), **asdict(self.step)},
            base_digest=state.base_digest,
            rng_state=bytes(torch.get_rng_state().numpy()).hex(),
        )
        directory = self.store.release_directory(batch.scenario, release_id).absolute()
        return save_release(directory, self.policy, self.optimizer, record)

    def _event(
        self,
        kind: Event,
        batch: TrainingBatch,
        state: ScenarioState,
        *,
        dropped: dict[str, str],
        reason: str = "",
        metrics: dict[str, float] | None = None,
        trained: list[str] | None = None,
        made: tuple[str, Adapter] | None = None,
    ) -> PolicyRelease:
        chain = state.chain
        serving = made[0] if made and kind == "released" else chain.serving
        return PolicyRelease(
            event=kind,
            release_id=made[0] if made else chain.serving,
            parent_id=chain.serving if made else None,
            serving=serving,
            scenario=batch.scenario,
            step=chain.step + 1 if made else chain.step,
            number=chain.number + 1 if made else chain.number,
            batch_id=batch.batch_id,
            trained=trained or [],
            dropped=dropped,
            reason=writable(reason),
            weights=made[1] if made else None,
            # What is no number would be null in the log and in the state, and neither could be read again.
            metrics={name: value for name, value in (metrics or {}).items() if math.isfinite(value)},
            created_at=self._clock(),
        )
