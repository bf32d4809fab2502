"""The record of one exchange while it is under way: what the client was served, in the order in which it got it."""

from __future__ import annotations

import time
import zlib
from collections.abc import Mapping
from typing import Any

import msgspec

from libs.contracts.traffic_raw import Outcome
from libs.dialects.assembly import Assembler, assembler_for
from services.gateway.capture import CaptureFilter
from services.gateway.encoding import Decompressor, UnknownEncodingError, decompressor, finish
from services.gateway.headers import RELEASE
from services.gateway.recorder import Exchange, Recorder, Served

_TAIL = 32  # bytes: longer than any end mark, which may lie across two pieces


class Recording:
    """Follows one exchange. With `keep` off it filters and records nothing."""

    def __init__(self, recorder: Recorder, exchange: Exchange, capture: CaptureFilter | str, *, keep: bool) -> None:
        self._recorder, self._exchange, self._keep = recorder, exchange, keep
        self._capture = None if isinstance(capture, str) else capture
        self._no_capture = capture if isinstance(capture, str) else "missing"
        self._assembler: Assembler | None = None
        self._opened: Decompressor | None = None
        self._release: str | None = None
        self._status = 0
        self._tail = b""
        self.streamed = False
        self.own_seconds = 0.0  # time that a client waited for us, not for its upstream

    @property
    def exchange_id(self) -> str:
        return self._exchange.exchange_id

    @property
    def path(self) -> str:
        return self._exchange.path

    def prepare(self) -> None:
        """Work on the request's part of the record while the upstream is busy."""
        if self._keep:
            self._recorder.prepare(self._exchange)

    def begin(self, status: int, headers: Mapping[str, str]) -> None:
        """The upstream's head is there."""
        self._status = status
        self._release = headers.get(RELEASE)
        self.streamed = headers.get("content-type", "").lower().startswith("text/event-stream")
        if self._keep:
            try:
                self._opened = decompressor(headers.get("content-encoding", ""))
            except UnknownEncodingError:
                self._recorder.drop(self._exchange, "unknown_encoding")
                self._keep = False
        if self._keep and self.streamed:
            self._assembler = assembler_for(self._exchange.path)

    # --- streamed ---

    def piece(self, chunk: bytes) -> bytes:
        """What of this piece goes to the client now."""
        return self._capture.feed(chunk) if self._capture else chunk

    def may_end(self, piece: bytes) -> bool:
        """Whether this piece may hold the provider's end mark."""
        if self._assembler is None:
            return False
        window = self._tail + piece
        self._tail = window[-_TAIL:]
        return any(mark in window for mark in self._assembler.TERMINAL)

    def feed(self, piece: bytes) -> None:
        """Take a piece that the client has."""
        if self._assembler is not None and self._opened is not None:
            try:
                self._assembler.feed(self._opened.feed(piece))
            except zlib.error:
                self._recorder.drop(self._exchange, "damaged_encoding")
                self._keep, self._assembler = False, None

    async def feed_last(self, piece: bytes) -> None:
        """Take a piece that may end the response, before the client has it; record if it does."""
        self.feed(piece)
        if self._assembler is not None and self._assembler.complete:
            await self._finish(self._assembler.result(), "completed")

    async def ended(self) -> bytes:
        """The upstream closed its stream in order: record if that is still to do. Returns held-back bytes."""
        rest = self._capture.close() if self._capture else b""
        if rest:
            self.feed(rest)
        response = self._assembled()
        assembler = self._assembler
        fine = assembler is not None and assembler.error is None and assembler.finished
        await self._finish(response, "completed" if fine else "upstream_error")
        return rest

    async def cut(self) -> None:
        """The upstream broke off in the middle of a stream."""
        await self._finish(self._assembled(), "upstream_error")

    # --- whole bodies ---

    async def whole(self, body: bytes) -> bytes:
        """A response that came in one: what goes to the client, recorded."""
        if self._capture and self._status < 400:
            body = self._capture.strip(body)
        if self._keep and self._opened is not None:
            await self._finish(self._json(body), "completed" if self._status < 400 else "upstream_error")
        return body

    async def failed(self, body: bytes) -> None:
        """The gateway answered in the upstream's place."""
        await self._finish(msgspec.json.decode(body), "upstream_error")

    def client_gone(self) -> None:
        """The client left: record what it was served so far, without making the cancelled request wait."""
        if self._keep:
            self._recorder.record_soon(self._exchange, self._served(self._assembled(), "client_gone"))

    def _assembled(self) -> Any:
        if self._assembler is None:
            return None
        if self._opened is not None:
            try:
                self._assembler.feed(finish(self._opened))
            except ValueError:
                return None
        return self._assembler.result()

    def _json(self, body: bytes) -> Any:
        assert self._opened is not None
        try:
            plain = self._opened.feed(body) + finish(self._opened)
        except (ValueError, zlib.error):
            return None
        try:
            return msgspec.json.decode(plain)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return plain.decode("utf-8", "replace")  # an error page, for instance

    async def _finish(self, response: Any, outcome: Outcome) -> None:
        if self._keep:
            began = time.perf_counter()
            await self._recorder.record(self._exchange, self._served(response, outcome))
            self.own_seconds += time.perf_counter() - began

    def _served(self, response: Any, outcome: Outcome) -> Served:
        found = self._capture
        return Served(
            response=response,
            outcome=outcome,
            release_id=(found.release_id if found else None) or self._release,
            capture=found.capture if found and outcome == "completed" else None,
            no_capture="broken_capture" if found and found.broken else self._no_capture,
        )
