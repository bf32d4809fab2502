"""Puts the policy together when an external engine does the inference."""

from __future__ import annotations

import asyncio

import aiohttp
from aiohttp import web

from libs.learning.engine.refused import ReleaseRefused
from libs.streams.http import health_routes, listening
from services.policy.config import PolicySettings
from services.policy.external.engines import ENGINES
from services.policy.external.proxy import Proxy
from services.policy.external.releases import ExternalRelease, ExternalReleases
from services.policy.follow import ReleaseFollower
from services.policy.names import MAX_BODY_BYTES
from services.policy.scenarios import Scenarios


async def serve_external(settings: PolicySettings, stop: asyncio.Event) -> None:
    """Run until `stop`; open requests may then finish for policy_drain_seconds."""
    key = settings.policy_engine_api_key
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    async with aiohttp.ClientSession(
        settings.policy_engine_url.removesuffix("/v1").rstrip("/"), headers=headers, auto_decompress=True
    ) as session:
        engine = ENGINES[settings.policy_engine](session, settings.policy_engine_timeout_seconds)
        releases = ExternalReleases(engine, str(settings.model_path), settings.policy_engine_paths)
        scenarios: Scenarios[ExternalRelease] = Scenarios(
            ExternalRelease("base"),
            releases.load,
            budget_bytes=settings.policy_engine_max_adapters,  # an adapter counts as one
            on_change=releases.serving,
            load_base=releases.load_base,
        )
        follower = ReleaseFollower(
            settings, scenarios, topic=settings.policy_releases_topic, retry_seconds=settings.policy_retry_seconds
        )
        proxy = Proxy(
            session,
            scenarios,
            releases,
            ready=follower.caught_up.is_set if settings.policy_follow_releases else lambda: True,
            timeout_seconds=settings.policy_engine_timeout_seconds,
        )
        app = web.Application(client_max_size=MAX_BODY_BYTES)
        proxy.routes(app)

        async def engine_answers() -> None:
            try:
                await engine.ping()
            except ReleaseRefused as error:
                raise RuntimeError(str(error)) from error

        health_routes(app, {"serving": proxy.check_ready, "engine": engine_answers})
        if settings.policy_follow_releases:
            follower.start()
        try:
            async with listening(app, settings, drain_seconds=settings.policy_drain_seconds):
                await stop.wait()
                proxy.accepting = False
        finally:
            await follower.stop()
