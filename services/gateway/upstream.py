"""The way to the upstream: which one a scenario uses, the shared client, and the retries before a first byte."""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from libs.errors import ConfigError
from libs.telemetry import metrics
from services.gateway.config import AuthStyle, CaptureMode, GatewaySettings, Route
from services.gateway.errors import RejectedError


@dataclass(frozen=True, slots=True)
class Target:
    """One upstream with everything resolved."""

    url: str
    key: str | None
    auth: AuthStyle
    capture: CaptureMode
    timeout: aiohttp.ClientTimeout

    def at(self, path_and_query: str) -> URL:
        """The upstream's address of a request target; a base that ends in /v1 is not doubled."""
        if self.url.endswith("/v1") and path_and_query.startswith("/v1/"):
            return URL(self.url + path_and_query[3:], encoded=True)
        return URL(self.url + path_and_query, encoded=True)


class Upstreams:
    """Targets per scenario and the connection pool that they share."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._settings = settings
        self._targets = {name: self._target(name, route) for name, route in settings.routes().items()}
        self._default = self._targets.get("*") or self._target("*", Route(url=settings.gateway_upstream_url))
        self._session: aiohttp.ClientSession | None = None

    def target(self, scenario: str) -> Target:
        return self._targets.get(scenario, self._default)

    @property
    def secrets(self) -> tuple[str, ...]:
        """Every upstream key, to keep them out of what clients see."""
        return tuple(t.key for t in (*self._targets.values(), self._default) if t.key)

    async def start(self) -> None:
        """Raises ConfigError when the upstream's CA cannot be read."""
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=self._trusted(), ttl_dns_cache=60),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
            read_bufsize=256 * 1024,
        )

    def _trusted(self) -> ssl.SSLContext | bool:
        ca = self._settings.gateway_upstream_ca_file
        try:
            return ssl.create_default_context(cafile=ca) if ca else True
        except OSError as error:
            raise ConfigError(f"CLAWBACK_GATEWAY_UPSTREAM_CA_FILE: cannot read {ca}: {error}") from error

    async def stop(self) -> None:
        if self._session:
            await self._session.close()

    async def call(
        self, target: Target, method: str, path_and_query: str, headers: CIMultiDict[str], body: object
    ) -> aiohttp.ClientResponse:
        """The upstream's answer, its body not yet read. Raises RejectedError (502, 504) when there is none.

        A call is repeated only while no byte of an answer has come; a body that is a stream is never repeated.
        """
        tries = 1 + (self._settings.gateway_retries if isinstance(body, bytes) else 0)
        for attempt in range(1, tries + 1):
            last = attempt == tries
            try:
                assert self._session is not None
                response = await self._session.request(
                    method,
                    target.at(path_and_query),
                    headers=headers,
                    data=body,
                    timeout=target.timeout,
                    allow_redirects=False,
                )
            except (aiohttp.ServerTimeoutError, TimeoutError) as error:
                if last or not isinstance(error, aiohttp.ConnectionTimeoutError):
                    raise RejectedError(504, "upstream_timeout", "The upstream did not answer in time.") from error
                metrics.GATEWAY_RETRIES.labels("timeout").inc()
            except (aiohttp.ClientError, OSError) as error:
                if last:
                    raise RejectedError(502, "upstream_unreachable", "The upstream cannot be reached.") from error
                metrics.GATEWAY_RETRIES.labels("connection").inc()
            else:
                if last or response.status not in self._settings.retry_statuses:
                    return response
                metrics.GATEWAY_RETRIES.labels("status").inc()
                response.close()
        raise AssertionError("unreachable")

    def _target(self, name: str, route: Route) -> Target:
        s = self._settings
        key = route.api_key
        if route.api_key_env:
            key = os.environ.get(route.api_key_env)
            if key is None:
                raise ConfigError(f"CLAWBACK_GATEWAY_ROUTES: {name}.api_key_env names {route.api_key_env}, not set")
        own = route.url.rstrip("/") == s.gateway_upstream_url
        if not route.url.startswith(("http://", "https://")):
            raise ConfigError(f"CLAWBACK_GATEWAY_ROUTES: {name}.url must start with http:// or https://")
        return Target(
            url=route.url.rstrip("/"),
            # The general key goes only to the general upstream: a route to another host brings its own.
            key=key or (s.gateway_upstream_api_key if own else None),
            auth=route.auth or s.gateway_upstream_auth,
            capture=route.capture or s.gateway_capture,
            timeout=aiohttp.ClientTimeout(
                total=None,
                sock_connect=s.gateway_connect_timeout_seconds,
                sock_read=route.timeout_seconds or s.gateway_read_timeout_seconds,
            ),
        )
