"""Puts the judge service together from its settings."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from libs.feedback.dispatch import Weights
from libs.feedback.engine import Options
from libs.feedback.judges.rules import RulesJudge
from libs.feedback.votes import Rules
from services.judge.config import JudgeSettings
from services.judge.handler import JudgeHandler


def options(settings: JudgeSettings) -> Options:
    return Options(
        window=settings.judge_window,
        rules=Rules(settings.judge_votes, settings.judge_votes_needed, settings.judge_turn_timeout_seconds),
        weights=Weights(
            moved_on=settings.judge_weight_moved_on,
            regeneration=settings.judge_weight_regeneration,
            branch=settings.judge_weight_branch,
        ),
        require_capture=settings.judge_require_capture,
    )


@asynccontextmanager
async def open_handler(settings: JudgeSettings) -> AsyncIterator[JudgeHandler]:
    """The handler with what it needs opened, and closed again."""
    yield JudgeHandler(RulesJudge(), options(settings), max_attempts=settings.judge_max_attempts)
