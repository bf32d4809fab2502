"""Errors as an OpenAI client reads them: {"error": {"message", "type", "param", "code"}}."""

from __future__ import annotations

from typing import Any


class ApiError(Exception):
    """An answer other than 200. `param` names the request's field at fault, when one is."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_seconds: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.param, self.code = status, param, code
        self.retry_after_seconds = retry_after_seconds

    @property
    def kind(self) -> str:
        if self.status == 429:
            return "rate_limit_error"
        return "invalid_request_error" if self.status < 500 else "server_error"

    def body(self) -> dict[str, Any]:
        return {"error": {"message": str(self), "type": self.kind, "param": self.param, "code": self.code}}

    def headers(self) -> dict[str, str]:
        return {} if self.retry_after_seconds is None else {"Retry-After": str(self.retry_after_seconds)}


def invalid(param: str, message: str, *, code: str | None = None) -> ApiError:
    """A 400 that names the field."""
    return ApiError(400, message, param=param, code=code)
