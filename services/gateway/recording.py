"""The record of one exchange while it is under way: what the client was served, in the order in which it got it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping

import msgspec

from libs.contracts.traffic_raw import Outcome
from libs.dialects.assembly import Assembler, assembler_for
from services.gateway import answers
from services.gateway.answers import Answer
from services.gateway.capture import CaptureFilter
from services.gateway.encoding import BodyError, TooLargeError, UnknownEncodingError, coding, decompress
from services.gateway.headers import RELEASE
from services.gateway.recorder import LARGE_BYTES, Exchange, Recorder, Served

_TAIL = 32  # bytes: longer than any end mark, which may lie across two pieces


class Recording:
    """Follows one exchange. With `keep` off it filters and records nothing. Nothing that an upstream sends raises."""

    def __init__(self, recorder: Recorder, exchange: Exchange, capture: CaptureFilter | str, *, keep: bool) -> None:
        self._recorder, self._exchange, self._keep = recorder, exchange, keep
        self._capture = None if isinstance(capture, str) else capture
        self._no_capture = capture if isinstance(capture, str) else "missing"
        self._assembler: Assembler | None = None  # of a stream that is not compressed
        self._pieces: list[bytes] = []  # of a compressed stream: opened when it is whole
        self._size = 0  # bytes of the stream so far
        self._coding = ""
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
        if not self._keep:
            return
        try:
            self._coding = coding(headers.get("content-encoding", ""))
        except UnknownEncodingError as error:
            self._drop(error)
        if self._keep and self.streamed and not self._coding:
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
        if not self._keep:
            return
        self._size += len(piece)
        if self._size > self._recorder.max_bytes:
            self._drop(TooLargeError("a stream over the limit"))
        elif self._assembler is not None:
            self._assembler.feed(piece)
        elif self._coding:
            self._pieces.append(piece)

    async def feed_last(self, piece: bytes) -> None:
        """Take a piece that may end the response, before the client has it; record if it does."""
        self.feed(piece)
        if self._assembler is not None and self._assembler.complete:
            await self._finish_stream(None)

    async def ended(self) -> bytes:
        """The upstream closed its stream in order: record if that is still to do. Returns held-back bytes."""
        rest = self._capture.close() if self._capture else b""
        if rest:
            self.feed(rest)
        await self._finish_stream(None)
        return rest

    async def cut(self) -> None:
        """The upstream broke off in the middle of a stream."""
        await self._finish_stream("upstream_error")

    # --- whole bodies ---

    async def whole(self, body: bytes) -> bytes:
        """A response that came in one: what goes to the client, recorded."""
        large = len(body) > LARGE_BYTES
        if self._capture and self._status < 400:
            body = await asyncio.to_thread(self._stripped, body) if large else self._stripped(body)

        def read() -> Answer:
            plain = decompress(body, self._coding, self._recorder.max_bytes)
            asked = self._exchange.asked_stream
            return answers.of_body(plain, self._exchange.path, self._status, asked_stream=asked)

        await self._finish(read, large=large or bool(self._coding))
        return body

    async def failed(self, body: bytes) -> None:
        """The gateway answered in the upstream's place."""
        answer = Answer(msgspec.json.decode(body), "upstream_error")
        await self._finish(lambda: answer)

    def client_gone(self) -> None:
        """The client left: record what it was served so far, without making the cancelled request wait."""
        if self._keep:
            self._recorder.record_soon(self._exchange, self._served(self._stream_reader("client_gone"), large=True))

    def _stripped(self, body: bytes) -> bytes:
        assert self._capture is not None
        try:
            return self._capture.strip(body)
        except Exception:  # the client is owed its answer, whatever is in it
            self._capture.broken = True
            return body

    async def _finish_stream(self, outcome: Outcome | None) -> None:
        if self._keep:
            large = bool(self._coding) or self._size > LARGE_BYTES
            await self._finish(self._stream_reader(outcome), large=large)
            self._assembler, self._keep = None, False  # what comes behind the end is no part of the response

    def _stream_reader(self, outcome: Outcome | None) -> Callable[[], Answer]:
        """Reads the stream so far; `outcome` says how it ended, None that it ended in order."""
        if self._assembler is not None:
            # Now: a later piece must not meet an assembler that is being read in a thread.
            answer = self._of_stream(self._assembler, outcome)
            return lambda: answer
        pieces = self._pieces
        return lambda: self._of_pieces(b"".join(pieces), outcome)

    def _of_pieces(self, body: bytes, outcome: Outcome | None) -> Answer:
        assembler = assembler_for(self._exchange.path)
        if not body or assembler is None:
            return Answer(None, outcome or "upstream_error")
        try:
            assembler.feed(decompress(body, self._coding, self._recorder.max_bytes, cut=outcome is not None))
        except TooLargeError:
            raise
        except BodyError:
            if outcome is None:
                raise
            return Answer(None, outcome)  # a brotli or zstd stream that was cut opens to nothing
        return self._of_stream(assembler, outcome)

    def _of_stream(self, assembler: Assembler, outcome: Outcome | None) -> Answer:
        if outcome is None:
            return answers.of_stream(assembler, self._status)
        return Answer(answers.served(assembler), outcome)

    def _drop(self, error: BodyError) -> None:
        self._recorder.drop(self._exchange, error.reason)
        self._keep, self._assembler = False, None
        self._pieces.clear()

    async def _finish(self, read: Callable[[], Answer], *, large: bool = False) -> None:
        if self._keep:
            began = time.perf_counter()
            await self._recorder.record(self._exchange, self._served(read, large=large))
            self.own_seconds += time.perf_counter() - began

    def _served(self, read: Callable[[], Answer], *, large: bool) -> Served:
        found = self._capture
        return Served(
            read=read,
            large=large,
            release_id=(found.release_id if found else None) or self._release,
            capture=found.capture if found else None,
            no_capture="broken_capture" if found and found.broken else self._no_capture,
        )
