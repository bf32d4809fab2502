"""Puts the policy server together and takes it down again: model, engine thread, release log, HTTP."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from functools import partial

import torch
from aiohttp import web

from libs.contracts import Adapter
from libs.errors import StopError
from libs.learning.engine.chat import ChatTokenizer
from libs.learning.engine.decoder import Decoder
from libs.learning.engine.engine import Engine, Limits
from libs.learning.engine.release import load_release
from libs.learning.engine.sequence import Release
from libs.learning.engine.weights import Weights, load_weights
from libs.streams.http import health_routes, listening
from libs.telemetry.logs import get_logger
from services.policy.app import PolicyApp
from services.policy.config import PolicySettings
from services.policy.follow import ReleaseFollower
from services.policy.names import MAX_BODY_BYTES
from services.policy.scenarios import Held, Scenarios
from services.policy.worker import EngineWorker

_log = get_logger("policy.server")


@dataclass(frozen=True, slots=True)
class Model:
    """What takes seconds to read from disk."""

    weights: Weights
    tokenizer: ChatTokenizer


def read_model(settings: PolicySettings) -> Model:
    """Base weights and tokenizer. Raises ConfigError naming the file and the fix."""
    if settings.policy_threads:
        torch.set_num_threads(settings.policy_threads)
    weights = load_weights(
        settings.model_path,
        dtype=getattr(torch, settings.policy_dtype),
        device=settings.policy_device,
        context=settings.policy_context_tokens or None,
    )
    return Model(weights, ChatTokenizer(settings.model_path))


async def load_weights_of(base: Decoder, release_id: str, adapter: Adapter) -> Held[Release]:
    """Read a release's weights in a thread, so that requests go on being answered. Raises ReleaseRefused."""
    loaded = await asyncio.to_thread(load_release, release_id, adapter, base)
    return Held(loaded.release, loaded.bytes_held)


def limits(settings: PolicySettings) -> Limits:
    return Limits(
        max_batch=settings.policy_max_batch,
        kv_budget_tokens=settings.policy_kv_tokens,
        prefix_budget_tokens=settings.policy_prefix_tokens,
        prefill_tokens=settings.policy_prefill_tokens,
    )


async def serve(settings: PolicySettings, stop: asyncio.Event) -> None:
    """Run until `stop`, then let open requests finish. Raises StopError when the engine fails for good."""
    model = await asyncio.to_thread(read_model, settings)
    engine = Engine(model.weights, model.tokenizer.decode, limits(settings))
    worker = EngineWorker(engine, settings.policy_max_waiting)
    decoder = Decoder(model.weights)
    scenarios = Scenarios(
        Release("base", decoder),
        partial(load_weights_of, decoder),
        budget_bytes=settings.policy_resident_megabytes * 1_000_000,
        on_change=worker.forget_releases,
    )
    follower = ReleaseFollower(
        settings, scenarios, topic=settings.policy_releases_topic, retry_seconds=settings.policy_retry_seconds
    )
    policy = PolicyApp(
        model_name=settings.model_name,
        tokenizer=model.tokenizer,
        engine=engine,
        worker=worker,
        scenarios=scenarios,
        stop_ids=model.weights.shape.eos_ids,
        default_max_tokens=settings.policy_default_max_tokens,
        ready=lambda: not settings.policy_follow_releases or follower.caught_up.is_set(),
    )
    app = web.Application(client_max_size=MAX_BODY_BYTES)
    policy.routes(app)
    health_routes(app, {"serving": policy.check_ready})
    worker.start()
    if settings.policy_follow_releases:
        follower.start()
    try:
        async with listening(app, settings, drain_seconds=5.0):
            await _first(stop, worker.failed)
            policy.accepting = False
            await _drain(worker, settings.policy_drain_seconds)
    finally:
        await follower.stop()
        await worker.stop()
    if worker.failed.is_set():
        raise StopError("the engine failed repeatedly; see the log", reason="engine")


async def _first(*events: asyncio.Event) -> None:
    tasks = [asyncio.create_task(event.wait()) for event in events]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()


async def _drain(worker: EngineWorker, seconds: float) -> None:
    """Wait until no request is open, at most `seconds`."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await _first(worker.empty, worker.failed)
    if worker.open:
        _log.warning("requests cut off", open=worker.open)
