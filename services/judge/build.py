"""Puts the judge service together from its settings."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from libs.feedback.dispatch import Weights
from libs.feedback.engine import BallotStore, Options
from libs.feedback.judge import Judge
from libs.feedback.judges.prm import PrmJudge, Sampling
from libs.feedback.judges.rules import RulesJudge
from libs.feedback.recording import RecordedVotes
from libs.feedback.transport import open_transport
from libs.feedback.votes import Rules
from libs.streams.sessions import ScriptStore
from services.judge.config import JudgeSettings
from services.judge.handler import JudgeHandler
from services.judge.state import RedisBallots, TokenBudget

_REDIS_CONNECTIONS = 64  # half for votes, half for budgets


def options(settings: JudgeSettings) -> Options:
    return Options(
        window=settings.judge_window,
        rules=Rules(settings.judge_votes, settings.judge_votes_needed, settings.judge_turn_timeout_seconds),
        weights=Weights(
            moved_on=settings.judge_weight_moved_on,
            tool_success=settings.judge_weight_tool_success,
            tool_failure=settings.judge_weight_tool_failure,
            regeneration=settings.judge_weight_regeneration,
            branch=settings.judge_weight_branch,
        ),
        require_capture=settings.judge_require_capture,
    )


@asynccontextmanager
async def open_handler(settings: JudgeSettings) -> AsyncIterator[JudgeHandler]:
    """The handler with what it needs opened, and closed again. The rules judge needs no Redis and no endpoint."""
    async with AsyncExitStack() as stack:
        redis: ScriptStore | None = None
        if settings.judge_kind == "prm" and (settings.judge_cache_ttl_seconds or settings.judge_budget_tokens):
            redis = ScriptStore(settings.redis_url, max_connections=_REDIS_CONNECTIONS)
            stack.push_async_callback(redis.close)
        judge = await _judge(settings, stack)
        yield JudgeHandler(
            judge,
            options(settings),
            store=_store(settings, redis, stack),
            budget=TokenBudget(redis, settings.judge_budget_tokens, settings.judge_budget_window_seconds, time.time),
            concurrency=settings.judge_prm_max_concurrency,
            max_attempts=settings.judge_max_attempts,
            slot_wait_seconds=settings.slot_wait_seconds,
        )


async def _judge(settings: JudgeSettings, stack: AsyncExitStack) -> Judge:
    if settings.judge_kind == "rules":
        return RulesJudge()
    # A turn holds a slot while its votes run at the same time, so there are as many connections as votes in flight.
    connections = settings.judge_prm_max_concurrency * settings.judge_votes
    transport = await stack.enter_async_context(
        open_transport(settings.judge_prm_url, settings.judge_prm_api_key, max_connections=connections)
    )
    return PrmJudge(
        transport,
        settings.judge_prm_model,
        Sampling(settings.judge_prm_temperature, settings.judge_prm_top_p, settings.judge_prm_max_tokens),
        call_timeout_seconds=settings.judge_prm_call_timeout_seconds,
        max_prompt_chars=settings.judge_prm_max_prompt_chars,
        structured=settings.judge_prm_structured,
    )


def _store(settings: JudgeSettings, redis: ScriptStore | None, stack: AsyncExitStack) -> BallotStore | None:
    store = (
        RedisBallots(redis, settings.judge_cache_ttl_seconds, at_once=_REDIS_CONNECTIONS // 2)
        if redis and settings.judge_cache_ttl_seconds
        else None
    )
    if not settings.judge_record_votes_path:
        return store
    return stack.enter_context(RecordedVotes(Path(settings.judge_record_votes_path), store, replay=False))
