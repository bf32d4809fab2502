"""Passes requests to the engine with `model` naming the scenario's release, and says in a header which one it was.

Everything else goes through as it is, streamed or not: the gateway asks the engine for the capture itself.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import aiohttp
import msgspec
from aiohttp import web
from multidict import CIMultiDict

from libs.learning.engine.refused import ReleaseRefused
from libs.telemetry import metrics
from libs.telemetry.logs import get_logger
from services.policy.errors import ApiError, invalid
from services.policy.external.releases import ExternalRelease, ExternalReleases
from services.policy.names import DEFAULT_SCENARIO, RELEASE_HEADER, SCENARIO_HEADER
from services.policy.scenarios import Scenarios

_log = get_logger("policy.proxy")
NAMED = ("/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses")
# Of one connection only (RFC 9110, 7.6.1), or no longer true once a body was decoded and changed.
_DROPPED = frozenset(
    {
        "connection",
        "keep-alive",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "host",
        "content-length",
        "content-encoding",
        "accept-encoding",
        "proxy-authenticate",
        "proxy-authorization",
        "authorization",  # the client's credentials stay here; the session has the engine's
    }
)


class Proxy:
    """Routes of a policy that stands before an external engine."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        scenarios: Scenarios[ExternalRelease],
        releases: ExternalReleases,
        *,
        ready: Callable[[], bool],
        timeout_seconds: float,
    ) -> None:
        self._session, self._scenarios, self._releases, self._ready = session, scenarios, releases, ready
        self._timeout = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=timeout_seconds)
        self.accepting = True

    def routes(self, app: web.Application) -> None:
        for path in NAMED:
            app.router.add_post(path, self.named)
        app.router.add_route("*", "/v1/{rest:.*}", self.plain)

    async def check_ready(self) -> None:
        """Raises while requests would be refused."""
        if not self.accepting:
            raise RuntimeError("draining")
        if not self._ready():
            raise RuntimeError("policy.releases not read yet")

    async def plain(self, request: web.Request) -> web.StreamResponse:
        """What names no model: passed on unchanged."""
        return await self._answered(request, self._forward(request, await request.read(), None))

    async def named(self, request: web.Request) -> web.StreamResponse:
        scenario = request.headers.get(SCENARIO_HEADER) or DEFAULT_SCENARIO
        return await self._answered(request, self._named(request, scenario), scenario)

    async def _answered(
        self, request: web.Request, answer: Awaitable[web.StreamResponse], scenario: str = DEFAULT_SCENARIO
    ) -> web.StreamResponse:
        outcome = "client_gone"
        try:
            response = await answer
            outcome = "completed" if response.status < 400 else f"http_{response.status}"
            return response
        except ApiError as error:
            outcome = f"http_{error.status}"
            return web.json_response(error.body(), status=error.status, headers=error.headers())
        finally:
            metrics.POLICY_REQUESTS.labels(self._scenarios.label(scenario), outcome).inc()

    async def _named(self, request: web.Request, scenario: str) -> web.StreamResponse:
        if not self.accepting or not self._ready():
            raise ApiError(503, "the server is starting or shutting down", retry_after_seconds=5)
        try:
            body = msgspec.json.decode(await request.read())
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise invalid("body", f"the request body is not valid JSON: {error}") from error
        if not isinstance(body, dict):
            raise invalid("body", "the request body must be a JSON object")
        try:
            wanted = await self._scenarios.acquire(scenario)
            async with self._releases.using(wanted) as release:
                body["model"] = await self._releases.model_of(release)
                return await self._forward(request, msgspec.json.encode(body), release)
        except ReleaseRefused as error:
            raise ApiError(503, f"the scenario's release cannot serve: {error}", retry_after_seconds=10) from error

    async def _forward(
        self, request: web.Request, body: bytes, release: ExternalRelease | None, *, again: bool = True
    ) -> web.StreamResponse:
        headers = CIMultiDict((k, v) for k, v in request.headers.items() if k.lower() not in _DROPPED)
        try:
            async with self._session.request(
                request.method, request.rel_url.raw_path_qs, data=body, headers=headers, timeout=self._timeout
            ) as answer:
                if release is not None and release.is_adapter and answer.status in (400, 404) and again:
                    error = await answer.read()
                    if release.release_id.encode() not in error:
                        return web.Response(status=answer.status, body=error, headers=_headers(answer, release))
                    await self._releases.reload_adapter(release)
                    return await self._forward(request, body, release, again=False)
                return await self._pass_on(request, answer, release)
        except (aiohttp.ClientConnectionError, TimeoutError) as error:
            raise ApiError(502, f"the engine does not answer: {error!r}", retry_after_seconds=5) from error

    async def _pass_on(
        self, request: web.Request, answer: aiohttp.ClientResponse, release: ExternalRelease | None
    ) -> web.StreamResponse:
        response = web.StreamResponse(status=answer.status, headers=_headers(answer, release))
        await response.prepare(request)
        try:
            async for chunk in answer.content.iter_any():
                await response.write(chunk)
        except (aiohttp.ClientError, TimeoutError) as error:
            # The answer has begun: an error of ours would land in the middle of it. Cut, so that the client sees it.
            _log.warning("the engine's answer broke off", error=type(error).__name__)
            if request.transport is not None:
                request.transport.abort()
            return response
        await response.write_eof()
        return response


def _headers(answer: aiohttp.ClientResponse, release: ExternalRelease | None) -> CIMultiDict[str]:
    headers = CIMultiDict((k, v) for k, v in answer.headers.items() if k.lower() not in _DROPPED)
    if release is not None:
        headers[RELEASE_HEADER] = release.release_id
    return headers
