"""The client's side of a connection, where no request exists yet: unreadable bytes, and bytes that never come.

aiohttp answers what its parser refuses in plain text, logs it with a traceback that quotes the bytes (a header with a
credential, for instance), leaves a handler waiting for a body whose chunks are broken, and has no limit for a body that
stops coming. Its request handler is the only place where that can be changed.
"""

from __future__ import annotations

import asyncio
import traceback
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import LineTooLong
from aiohttp.streams import EMPTY_PAYLOAD, StreamReader
from aiohttp.web_protocol import RequestHandler, _ErrInfo

from libs.telemetry.logs import get_logger
from services.gateway.errors import ReceiveTimeoutError, RejectedError, error_response, unreadable_body

log = get_logger("gateway.connections")

# What the parser says about a request; the bytes that it quotes behind these words are never repeated.
_FAULTS = (
    "Received HTTPS traffic on an HTTP port",
    "Invalid method",
    "Invalid HTTP version",
    "Missing 'Host' header",
    "Invalid header token",
    "Invalid header value char",
    "Invalid character in Content-Length",
    "Duplicate Content-Length",
    "Content-Length can't be present with Transfer-Encoding",
    "invalid `Transfer-Encoding`",
    "Invalid character in chunk size",
)


class ClientConnection(RequestHandler):
    """One connection of a client.

    A head must be whole `receive_seconds` after its first byte, and its body may be silent for as long. Bytes that we
    hold back ourselves (an earlier request is being served, the reader is behind) do not count.
    """

    __slots__ = ("_body", "_receive_seconds", "_since", "_timer")

    def __init__(self, manager: web.Server, *, receive_seconds: float, **kwargs: Any) -> None:
        super().__init__(manager, **kwargs)
        self._receive_seconds = receive_seconds
        self._body: StreamReader = EMPTY_PAYLOAD
        self._since: float | None = None  # when the wait for the client began, in the loop's time
        self._timer: asyncio.TimerHandle | None = None

    def data_received(self, data: bytes) -> None:
        in_body, requests = not self._body.is_eof(), self._request_count
        super().data_received(data)
        if self._request_count != requests:
            message, payload = self._messages[-1]
            if in_body and isinstance(message, _ErrInfo):
                self._messages.pop()
                self._fail_body(web.RequestPayloadError("the body's chunks cannot be read"))
            else:
                self._body = payload
            self._since = None
        if not self._body.is_eof():
            self._since = self._loop.time()  # a body may take its time, as long as it comes
        elif in_body:
            self._since = None
        elif self._request_count == requests and self._since is None and data and not self._upgraded:
            self._since = self._loop.time()  # the first bytes of a head
        if self._since is not None and self._timer is None:
            self._timer = self._loop.call_later(self._receive_seconds, self._check)

    def connection_lost(self, exc: BaseException | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._since = None
        super().connection_lost(exc)

    def _check(self) -> None:
        self._timer = None
        if self._since is None:
            return
        now, in_body = self._loop.time(), not self._body.is_eof()
        serving = self._waiter is None or self._waiter.done()
        if self._reading_paused or (serving and not in_body):
            self._since = now
        left = self._since + self._receive_seconds - now
        if left > 0:
            self._timer = self._loop.call_later(left, self._check)
        elif in_body:
            self._since = None
            self._fail_body(ReceiveTimeoutError("the body stopped coming"))
        elif not self._close and not self._force_close:
            self._since = None
            self._refuse_head()

    def _fail_body(self, error: web.RequestPayloadError) -> None:
        """Whoever reads the body gets the error; the connection ends with the answer."""
        self._body.set_exception(error)
        self._body.feed_eof()
        self.close()

    def _refuse_head(self) -> None:
        """In the place of the request that never came its refusal goes to the handler."""
        self._request_count += 1
        self._messages.append((_ErrInfo(status=408, exc=ReceiveTimeoutError(), message=""), EMPTY_PAYLOAD))
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def finish_response(
        self, request: Any, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """aiohttp's own refusals (no route for CONNECT, an unknown Expect) in the provider's form."""
        if isinstance(resp, web.HTTPException):
            reason = type(resp).__name__.removeprefix("HTTP").lower()
            resp = error_response(request.path, RejectedError(resp.status, reason, f"{resp.reason}."))
        if self._close and not resp.prepared:
            resp.force_close()
        return await super().finish_response(request, resp, start_time)

    def handle_error(
        self, request: Any, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """The answer to a request that cannot be read or whose handler failed, with one line in the log."""
        refused = rejection(status, exc)
        kind = type(exc).__name__ if exc else None
        if status >= 500:
            log.error("request_failed", path=request.path, error=kind, where=where(exc))
        else:
            log.warning("request_refused", reason=refused.reason, error=kind, remote=request.remote)
        if request.writer.output_size > 0:
            raise ConnectionError("the answer has begun, no error can be sent any more")
        answer = error_response(request.path, refused)
        answer.force_close()
        return answer

    def log_exception(self, *args: Any, **kw: Any) -> None:
        """aiohttp's own reports: the error's type and place, not its text, which may quote the request."""
        exc = kw.get("exc_info")
        error = exc if isinstance(exc, BaseException) else None
        log.error("connection_failed", error=type(error).__name__ if error else None, where=where(error))


def rejection(status: int, error: BaseException | None) -> RejectedError:
    """What the client is told, in words of our own."""
    if isinstance(error, web.RequestPayloadError):
        return unreadable_body(error)
    if status == 504:
        return RejectedError(504, "timeout", "The request took too long.")
    if status >= 500:
        return RejectedError(500, "internal_error", "The gateway failed to serve this request.")
    text = str(error)
    if isinstance(error, LineTooLong) or "Too many headers" in text:
        return RejectedError(431, "header_too_large", "The request line or the headers are too large.")
    fault = next((f for f in _FAULTS if f in text), None)
    return RejectedError(400, "malformed_request", f"The request is not valid HTTP: {fault or 'it cannot be read'}.")


def where(error: BaseException | None) -> str | None:
    """The innermost places of a traceback, file and line only."""
    if error is None:
        return None
    frames = traceback.extract_tb(error.__traceback__)[-4:]
    return " < ".join(f"{f.filename.rsplit('/', 1)[-1]}:{f.lineno}" for f in reversed(frames))


class _Server(web.Server):
    """aiohttp's server with our connections."""

    def __init__(self, like: web.Server, receive_seconds: float) -> None:
        super().__init__(
            like.request_handler,
            request_factory=like.request_factory,
            handler_cancellation=like.handler_cancellation,
            **like._kwargs,
        )
        self._receive_seconds = receive_seconds

    def __call__(self) -> RequestHandler:
        return ClientConnection(self, loop=self._loop, receive_seconds=self._receive_seconds, **self._kwargs)


class Runner(web.AppRunner):
    """An AppRunner whose clients have `receive_seconds` for their requests."""

    __slots__ = ("_receive_seconds",)

    def __init__(self, app: web.Application, *, receive_seconds: float, **kwargs: Any) -> None:
        super().__init__(app, **kwargs)
        self._receive_seconds = receive_seconds

    async def _make_server(self) -> web.Server:
        return _Server(await super()._make_server(), self._receive_seconds)
