"""One request through the gateway: bytes go on first, parsing comes after.

Of a recorded exchange only its very last piece waits, until the record lies in the spool (at most
CLAWBACK_GATEWAY_RECORD_WAIT_SECONDS): a client that has its whole answer can rely on the record, and its next request
is recorded after this one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import aiohttp
from aiohttp import web
from multidict import CIMultiDict

from libs.dialects.hints import recorded_headers
from libs.telemetry import metrics
from services.gateway.access import Access, Caller
from services.gateway.capture import CaptureFilter, capture_for
from services.gateway.config import GatewaySettings
from services.gateway.errors import RejectedError, error_body, error_response
from services.gateway.headers import RECORD_OFF, SCENARIO, client_headers, upstream_headers
from services.gateway.recorder import LARGE_BYTES, Exchange, Recorder
from services.gateway.recording import Recording
from services.gateway.scrub import scrub
from services.gateway.upstream import Target, Upstreams

EXCHANGE_HEADER = "x-clawback-exchange-id"
_SENDING_STEPS = 4  # turns of the event loop in which aiohttp connects to its writer task and writes

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Serve = Callable[[web.Request, str, Caller], Awaitable[web.StreamResponse]]


class Proxy:
    """The handlers of all routes; shares the upstream pool, the recorder and the access rules."""

    def __init__(self, settings: GatewaySettings, upstreams: Upstreams, recorder: Recorder, access: Access) -> None:
        self._settings, self._upstreams, self._recorder, self._access = settings, upstreams, recorder, access

    def recorded(self, path: str) -> Handler:
        """The handler of a route whose exchanges are kept; `path` is the name under which they are recorded."""

        async def handle(request: web.Request) -> web.StreamResponse:
            return await self._measured(request, path, self._exchange)

        return handle

    async def passed_through(self, request: web.Request) -> web.StreamResponse:
        """Any other route: nothing is read, nothing is kept."""
        return await self._measured(request, request.path, self._pass)

    async def _measured(self, request: web.Request, path: str, serve: Serve) -> web.StreamResponse:
        route = path if serve == self._exchange else "other"
        started, status = time.perf_counter(), 499
        metrics.GATEWAY_OPEN.inc()
        try:
            if not request.raw_path.startswith("/"):  # absolute form, as to a forward proxy: it would be no URL
                raise RejectedError(400, "bad_target", "The request's target must be a path: this is no forward proxy.")
            with self._access.admit(request) as caller:
                response = await serve(request, path, caller)
            status = response.status
            return response
        except RejectedError as error:
            status = error.status
            return error_response(path, error)
        finally:
            metrics.GATEWAY_OPEN.dec()
            metrics.GATEWAY_REQUESTS.labels(route, f"{status // 100}xx").inc()
            metrics.GATEWAY_SECONDS.labels(route).observe(time.perf_counter() - started)

    def _headers(self, request: web.Request, target: Target) -> CIMultiDict[str]:
        return upstream_headers(
            request.headers.items(),
            path=request.path,
            key=target.key,
            auth=target.auth,
            forward_credentials=self._settings.gateway_forward_credentials,
        )

    async def _exchange(self, request: web.Request, path: str, caller: Caller) -> web.StreamResponse:
        scenario = self._access.scenario(caller, request.headers.get(SCENARIO))
        target = self._upstreams.target(scenario)
        body = await self._access.body(caller, request)
        began = time.perf_counter()
        headers = self._headers(request, target)
        keep = request.headers.get(RECORD_OFF, "").strip().lower() not in ("off", "false", "0", "no")
        exchange = Exchange(
            path=path,
            scenario=scenario,
            tenant=caller.tenant,
            headers=recorded_headers(request.headers.items()),
            body=body,
            content_encoding=request.headers.get("content-encoding", ""),
        )
        capture: CaptureFilter | str = "not_recorded"
        if keep:
            capture = await self._capture(target, path, body, headers)
        recording = Recording(self._recorder, exchange, capture, keep=keep)
        if not isinstance(capture, str):
            body = capture.body
            headers["Accept-Encoding"] = "identity"  # the capture is cut out of plain bytes
        try:
            call = asyncio.ensure_future(self._upstreams.call(target, request.method, request.raw_path, headers, body))
            recording.own_seconds += time.perf_counter() - began
            for _ in range(_SENDING_STEPS):
                await asyncio.sleep(0)
            recording.prepare()  # the request is on its way: prepare the record while the upstream works
            upstream = await call
        except RejectedError as error:
            await recording.failed(error_body(path, error))
            raise
        except asyncio.CancelledError:
            call.cancel()
            recording.client_gone()
            raise
        async with upstream:
            answered = await self._answer(request, upstream, recording, caller)
        metrics.GATEWAY_OWN_SECONDS.observe(recording.own_seconds)
        return answered

    async def _capture(self, target: Target, path: str, body: bytes, headers: CIMultiDict[str]) -> CaptureFilter | str:
        s = self._settings
        given = (target.capture, path, body, headers, s.gateway_capture_top_k, s.gateway_record_max_bytes)
        if len(body) > LARGE_BYTES or "content-encoding" in headers:
            return await asyncio.to_thread(capture_for, *given)
        return capture_for(*given)

    async def _scrubbed(self, body: bytes, headers: CIMultiDict[str], caller: Caller) -> bytes:
        """An error's body without our credentials."""
        given = (body, headers, (*self._upstreams.secrets, caller.token), self._settings.gateway_record_max_bytes)
        if len(body) > LARGE_BYTES or "content-encoding" in headers:
            return await asyncio.to_thread(scrub, *given)
        return scrub(*given)

    async def _answer(
        self, request: web.Request, upstream: aiohttp.ClientResponse, recording: Recording, caller: Caller
    ) -> web.StreamResponse:
        headers = client_headers(upstream.headers.items())
        headers[EXCHANGE_HEADER] = recording.exchange_id
        recording.begin(upstream.status, upstream.headers)
        try:
            if upstream.status < 400 and recording.streamed:
                return await self._stream(request, upstream, headers, recording)
            return await self._plain(upstream, headers, recording, caller)
        except asyncio.CancelledError:
            recording.client_gone()
            raise
        except ConnectionResetError:
            # The client went away while we wrote to it; leaving the block closes the upstream.
            recording.client_gone()
            raise

    async def _plain(
        self,
        upstream: aiohttp.ClientResponse,
        headers: CIMultiDict[str],
        recording: Recording,
        caller: Caller,
    ) -> web.StreamResponse:
        try:
            body = await upstream.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            rejected = RejectedError(502, "upstream_cut", "The upstream's answer broke off.")
            await recording.failed(error_body(recording.path, rejected))
            raise rejected from error
        if upstream.status >= 400:
            body = await self._scrubbed(body, headers, caller)
        body = await recording.whole(body)
        headers.popall("content-length", None)
        return web.Response(status=upstream.status, reason=upstream.reason, headers=headers, body=body)

    async def _stream(
        self,
        request: web.Request,
        upstream: aiohttp.ClientResponse,
        headers: CIMultiDict[str],
        recording: Recording,
    ) -> web.StreamResponse:
        headers.popall("content-length", None)
        response = web.StreamResponse(status=upstream.status, reason=upstream.reason, headers=headers)
        await response.prepare(request)
        try:
            async for chunk in upstream.content.iter_any():
                piece = recording.piece(chunk)
                if not piece:
                    continue
                if recording.may_end(piece):
                    await recording.feed_last(piece)
                    await _to_client(response, piece)
                else:
                    await _to_client(response, piece)
                    recording.feed(piece)
        except (aiohttp.ClientError, TimeoutError):
            await recording.cut()
            _abort(request)
            return response
        if rest := await recording.ended():
            await response.write(rest)
        await response.write_eof()
        return response

    async def _pass(self, request: web.Request, _path: str, caller: Caller) -> web.StreamResponse:
        target = self._upstreams.target(self._access.scenario(caller, request.headers.get(SCENARIO)))
        headers = self._headers(request, target)
        body: object = await self._access.body(caller, request) if request.body_exists else None
        async with await self._upstreams.call(target, request.method, request.raw_path, headers, body) as upstream:
            answer = client_headers(upstream.headers.items())
            if upstream.status >= 400:
                text = await self._scrubbed(await upstream.read(), answer, caller)
                answer.popall("content-length", None)
                return web.Response(status=upstream.status, reason=upstream.reason, headers=answer, body=text)
            response = web.StreamResponse(status=upstream.status, reason=upstream.reason, headers=answer)
            await response.prepare(request)
            try:
                async for chunk in upstream.content.iter_any():
                    await response.write(chunk)
            except (aiohttp.ClientError, TimeoutError):
                _abort(request)
                return response
            await response.write_eof()
            return response


async def _to_client(response: web.StreamResponse, piece: bytes) -> None:
    """Write; aiohttp's error for a client that is gone is a ClientError too, as those of the upstream are."""
    try:
        await response.write(piece)
    except aiohttp.ClientConnectionResetError as error:
        raise ConnectionResetError(str(error)) from error


def _abort(request: web.Request) -> None:
    """Close without the end mark, so that the client sees a cut answer as cut."""
    if request.transport is not None:
        request.transport.abort()
