"""The gateway's own error answers, in the form that the client's library expects from its provider."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from aiohttp import web

from libs.telemetry import metrics

_ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "invalid_request_error",
    413: "request_too_large",
    429: "rate_limit_error",
    502: "api_error",
    503: "overloaded_error",
    504: "timeout_error",
}
_OPENAI_TYPES = {401: "authentication_error", 429: "rate_limit_error"}


class RejectedError(Exception):
    """A request that the gateway answers itself. `reason` labels the metric and is the error's code."""

    def __init__(self, status: int, reason: str, message: str, *, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.reason, self.message, self.headers = status, reason, message, dict(headers or {})


def error_response(path: str, error: RejectedError) -> web.Response:
    """The answer for a rejected request; counts it."""
    metrics.GATEWAY_REJECTED.labels(error.reason).inc()
    return web.Response(
        status=error.status,
        body=error_body(path, error),
        content_type="application/json",
        headers={"x-clawback-error": error.reason, **error.headers},
    )


def error_body(path: str, error: RejectedError) -> bytes:
    """The provider's error JSON. Never holds a credential: messages are written here, not copied from exceptions."""
    if path.startswith("/v1/messages"):
        kind = _ANTHROPIC_TYPES.get(error.status, "api_error")
        return msgspec.json.encode({"type": "error", "error": {"type": kind, "message": error.message}})
    kind = _OPENAI_TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "server_error")
    body = {"error": {"message": error.message, "type": kind, "param": None, "code": error.reason}}
    return msgspec.json.encode(body)


class ReceiveTimeoutError(web.RequestPayloadError):
    """The request stopped coming before it was whole."""


def unreadable_body(error: web.RequestPayloadError) -> RejectedError:
    """The refusal for a body that broke off or stopped."""
    if isinstance(error, ReceiveTimeoutError):
        return RejectedError(408, "request_timeout", "The request stopped coming before it was whole.")
    return RejectedError(400, "malformed_body", "The request's body cannot be read: its chunks or its end are wrong.")
