"""Who may call, how often and with how much."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

from aiohttp import web

from services.gateway.config import GatewaySettings
from services.gateway.errors import RejectedError
from services.gateway.headers import credential, tenant_of

_SCENARIO = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class Access:
    """Checks a request before anything of it is read."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._settings = settings

    @contextlib.contextmanager
    def admit(self, request: web.Request) -> Iterator[None]:
        """Raises RejectedError (401, 429)."""
        yield

    def tenant(self, request: web.Request) -> str:
        return tenant_of(credential(request.headers))

    def secrets(self, request: web.Request) -> tuple[str, ...]:
        """The client's credential, which no error body may repeat."""
        token = credential(request.headers)
        return (token,) if token else ()

    def scenario(self, value: str | None) -> str:
        """The scenario that the request names. Raises RejectedError (400) when it cannot be a name."""
        name = (value or "").strip() or self._settings.gateway_default_scenario
        if not _SCENARIO.fullmatch(name):
            raise RejectedError(
                400,
                "bad_scenario",
                "x-reef-scenario must be 1 to 64 letters, digits, dots, dashes or underscores.",
            )
        return name

    async def body(self, request: web.Request) -> bytes:
        """The request's body. Raises RejectedError (413) above the limit."""
        try:
            return await request.read()
        except web.HTTPRequestEntityTooLarge as error:
            limit = self._settings.gateway_max_body_bytes
            raise RejectedError(
                413, "body_too_large", f"The request body is larger than the gateway's limit of {limit} bytes."
            ) from error
