"""Who may call, how often and with how much. Everything here is decided before a body is read."""

from __future__ import annotations

import contextlib
import hmac
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TypeVar

import msgspec
from aiohttp import web

from libs.errors import ConfigError
from services.gateway.config import GatewaySettings, json_or_file
from services.gateway.errors import RejectedError, unreadable_body
from services.gateway.headers import credential, tenant_of

T = TypeVar("T", int, float)

_SCENARIO = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_MAX_METERS = 10_000  # tenants whose use is remembered; the least recently seen ones are let go


class TokenRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one token may do. None takes the gateway's general limit, 0 means no limit."""

    tenant: str
    requests_per_minute: float | None = None
    concurrent_requests: int | None = None
    max_body_bytes: int | None = None
    scenarios: list[str] | None = None  # None: any


_ANYBODY = TokenRule(tenant="")


@dataclass(slots=True)
class Meter:
    """A tenant's use: a token bucket that refills by the minute, and the requests that are open now."""

    tokens: float
    filled_at: float
    open: int = 0


@dataclass(frozen=True, slots=True)
class Caller:
    """An admitted client."""

    tenant: str  # stable hash; never the credential
    token: str = field(repr=False)
    requests_per_minute: float
    concurrent_requests: int
    max_body_bytes: int
    scenarios: frozenset[str] | None


class Access:
    """Authentication and limits. Without configured tokens every client is let in under its own credential's hash."""

    def __init__(self, settings: GatewaySettings, clock: Callable[[], float] = time.monotonic) -> None:
        """Raises ConfigError when the tokens' JSON is wrong."""
        self._settings, self._clock = settings, clock
        self._tokens = _tokens(settings)
        self._meters: OrderedDict[str, Meter] = OrderedDict()

    @contextlib.contextmanager
    def admit(self, request: web.Request) -> Iterator[Caller]:
        """Count the request in and out. Raises RejectedError (401, 413, 429)."""
        caller = self._caller(credential(request.headers))
        length = request.content_length
        if length is not None and length > caller.max_body_bytes:
            raise self._too_large(caller)
        meter = self._meter(caller)
        self._take(caller, meter)
        meter.open += 1
        try:
            yield caller
        finally:
            meter.open -= 1

    def scenario(self, caller: Caller, value: str | None) -> str:
        """The scenario that the request names. Raises RejectedError (400, 403)."""
        name = (value or "").strip() or self._settings.gateway_default_scenario
        if not _SCENARIO.fullmatch(name):
            allowed = "1 to 64 letters, digits, dots, dashes or underscores"
            raise RejectedError(400, "bad_scenario", f"x-reef-scenario must be {allowed}.")
        if caller.scenarios is not None and name not in caller.scenarios:
            raise RejectedError(403, "scenario_not_allowed", f"This token may not use scenario {name}.")
        return name

    async def body(self, caller: Caller, request: web.Request) -> bytes:
        """The request's body. Raises RejectedError: 413 above the caller's limit, also for a body without length; 400
        and 408 for one that cannot be read or stops coming."""
        try:
            if request.content_length is not None:
                return await request.read()  # checked against the limit when the request was admitted
            body = bytearray()
            async for chunk in request.content.iter_any():
                body += chunk
                if len(body) > caller.max_body_bytes:
                    raise self._too_large(caller)
            return bytes(body)
        except web.RequestPayloadError as error:
            raise unreadable_body(error) from error

    def _caller(self, token: str) -> Caller:
        s = self._settings
        rule = self._rule(token)
        return Caller(
            tenant=tenant_of(f"tenant:{rule.tenant}") if rule.tenant else tenant_of(token),
            token=token,
            requests_per_minute=_first(rule.requests_per_minute, s.gateway_limit_requests_per_minute),
            concurrent_requests=_first(rule.concurrent_requests, s.gateway_limit_concurrent_requests),
            max_body_bytes=min(rule.max_body_bytes or s.gateway_max_body_bytes, s.gateway_max_body_bytes),
            scenarios=None if rule.scenarios is None else frozenset(rule.scenarios),
        )

    def _rule(self, token: str) -> TokenRule:
        if not self._tokens:
            return _ANYBODY
        digest = sha256(token.encode()).hexdigest()
        found: TokenRule | None = None
        # Every entry is compared in full, so that the time tells nothing about which one matched.
        for known, rule in self._tokens.items():
            if hmac.compare_digest(known, digest):
                found = rule
        if found is None:
            raise RejectedError(401, "unauthorized", "A valid token is needed: Authorization: Bearer or x-api-key.")
        return found

    def _meter(self, caller: Caller) -> Meter:
        meter = self._meters.get(caller.tenant)
        if meter is None:
            meter = self._meters[caller.tenant] = Meter(_burst(caller), self._clock())
        self._meters.move_to_end(caller.tenant)
        if len(self._meters) > _MAX_METERS:
            idle = next((t for t, m in self._meters.items() if not m.open), None)
            if idle is not None:
                del self._meters[idle]
        return meter

    def _take(self, caller: Caller, meter: Meter) -> None:
        if caller.concurrent_requests and meter.open >= caller.concurrent_requests:
            raise _slow_down("too_many_open", f"{caller.concurrent_requests} requests of this tenant are open.", 1)
        if not caller.requests_per_minute:
            return
        now, per_second = self._clock(), caller.requests_per_minute / 60
        meter.tokens = min(_burst(caller), meter.tokens + (now - meter.filled_at) * per_second)
        meter.filled_at = now
        if meter.tokens < 1:
            wait = max(1, round((1 - meter.tokens) / per_second + 0.5))
            raise _slow_down("rate_limited", f"More than {caller.requests_per_minute:g} requests a minute.", wait)
        meter.tokens -= 1

    def _too_large(self, caller: Caller) -> RejectedError:
        limit = caller.max_body_bytes
        return RejectedError(413, "body_too_large", f"The request body is larger than the limit of {limit} bytes.")


def _tokens(settings: GatewaySettings) -> dict[str, TokenRule]:
    name = "CLAWBACK_GATEWAY_TOKENS"
    try:
        given = msgspec.convert(json_or_file(settings.gateway_tokens, name), dict[str, TokenRule | str])
    except msgspec.ValidationError as error:
        raise ConfigError(f"{name}: {error}") from error
    for digest in given:
        if not _SHA256.fullmatch(digest):
            raise ConfigError(f"{name}: keys are the tokens' SHA-256 in lower-case hex (64 digits), not the tokens")
    return {k: v if isinstance(v, TokenRule) else TokenRule(tenant=v) for k, v in given.items()}


def _first(value: T | None, otherwise: T) -> T:
    return otherwise if value is None else value


def _burst(caller: Caller) -> float:
    """A tenth of a minute's requests may come at once, at least one."""
    return max(1.0, caller.requests_per_minute / 10)


def _slow_down(reason: str, message: str, retry_after_seconds: int) -> RejectedError:
    return RejectedError(429, reason, message, headers={"retry-after": str(retry_after_seconds)})
