"""From a finished exchange to a record in the spool. The client never sees it fail, and waits for it only briefly."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec
import uuid_utils
from msgspec import structs

from libs.contracts import BASE_RELEASE, Capture, TrafficRaw, encode
from libs.contracts.traffic_raw import Outcome
from libs.dialects.loose import NotJsonError, TooDeepError, read_json
from libs.telemetry import metrics
from libs.telemetry.logs import get_logger
from services.gateway.answers import Answer
from services.gateway.encoding import BodyError, decompress
from services.gateway.redaction import Redactor
from services.gateway.spool import Spool, SpoolFullError

log = get_logger("gateway.recorder")

_ENGINE_IDS = frozenset({"id", "model", "system_fingerprint"})  # top-level fields, never part of what was said
# Names that a client gives to conversations and people: redacted, but the model never read them, so what the captured
# tokens say is still what the record says.
_CLIENT_IDS = frozenset(
    {"metadata", "client_metadata", "user", "prompt_cache_key", "safety_identifier", "model", "store"}
    | {"session_id", "conversation_id", "conversation", "litellm_session_id", "previous_response_id"}
)
LARGE_BYTES = 256 * 1024  # above this the record is built in a thread, so that other requests go on


@dataclass(slots=True)
class Exchange:
    """What is known when a request came in; times are unix seconds."""

    path: str
    scenario: str
    tenant: str
    headers: Mapping[str, str]
    body: bytes
    content_encoding: str = ""
    received_at: float = field(default_factory=time.time)
    exchange_id: str = field(default_factory=lambda: str(uuid_utils.uuid7()))
    draft: TrafficRaw | None = None  # the request's part of the record, redacted, once prepared
    key: bytes = b""
    redacted: bool = False
    asked_stream: bool = False  # known once prepared
    recorded: bool = False


@dataclass(frozen=True, slots=True)
class Served:
    """What the client got: the provider's JSON (assembled if it was streamed) and what came beside it.

    `read` is called once the request's part is prepared, in a thread when the response is `large`; it may raise
    BodyError.
    """

    read: Callable[[], Answer]
    large: bool = False
    release_id: str | None = None
    capture: Capture | None = None
    no_capture: str = ""  # why there is none


class Built(NamedTuple):
    """A record for the spool, and what the metrics tell of it."""

    key: bytes
    value: bytes
    outcome: Outcome
    captured: bool


class Recorder:
    """Builds traffic.raw records and writes them to the spool, each exchange at most once."""

    def __init__(
        self,
        spool: Spool,
        *,
        key_of: Callable[[TrafficRaw], str],
        wake: Callable[[], None],
        wait_seconds: float,
        max_bytes: int,
        redactor: Redactor | None = None,
    ) -> None:
        """`max_bytes` is the largest request or response, uncompressed, that is recorded."""
        self._spool, self._key_of, self._wake, self._wait_seconds = spool, key_of, wake, wait_seconds
        self._redactor, self.max_bytes = redactor, max_bytes
        self._tasks: set[asyncio.Task[None]] = set()

    def prepare(self, exchange: Exchange) -> None:
        """Read the request ahead of time, unless it is large or may become so when it is opened."""
        if len(exchange.body) <= LARGE_BYTES and not exchange.content_encoding:
            try:
                self._prepare(exchange)
            except Exception as error:
                self._failed(exchange, error)

    async def record(self, exchange: Exchange, served: Served) -> None:
        """Write the record: at once if it is small, else in a thread, waiting no longer than the stated bound."""
        if exchange.recorded:
            return
        if exchange.draft is not None and not served.large:
            self._write(exchange, served, lambda: self._build(exchange, served))
            return
        await asyncio.wait({self.record_soon(exchange, served)}, timeout=self._wait_seconds)

    def record_soon(self, exchange: Exchange, served: Served) -> asyncio.Task[None]:
        """Write the record without anybody waiting for it."""
        task = asyncio.create_task(self._in_thread(exchange, served))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def drop(self, exchange: Exchange, reason: str, error: Exception | None = None) -> None:
        """Count an exchange that was served but cannot be kept."""
        if exchange.recorded:
            return
        exchange.recorded = True
        metrics.GATEWAY_DROPPED.labels(reason).inc()
        # Only the error's type: its text may quote the conversation.
        kind = type(error).__name__ if error else None
        log.warning("record_dropped", exchange_id=exchange.exchange_id, reason=reason, error=kind)

    async def drained(self) -> None:
        """Wait for the records that are still being built."""
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    async def _in_thread(self, exchange: Exchange, served: Served) -> None:
        if exchange.recorded:
            return
        try:
            built = await asyncio.to_thread(self._build, exchange, served)
        except Exception as error:
            self._failed(exchange, error)
            return
        self._write(exchange, served, lambda: built)

    def _prepare(self, exchange: Exchange) -> TrafficRaw:
        """All of the record that the request decides, so that little is left to do when the response is there."""
        if exchange.draft is not None:
            return exchange.draft
        body = read_json(decompress(exchange.body, exchange.content_encoding, self.max_bytes))
        exchange.asked_stream = isinstance(body, dict) and bool(body.get("stream"))
        request, exchange.redacted = self._redact_request(body)
        headers, _ = self._redact(dict(exchange.headers))
        draft = TrafficRaw(
            exchange_id=exchange.exchange_id,
            scenario=exchange.scenario,
            tenant=exchange.tenant,
            received_at=exchange.received_at,
            completed_at=exchange.received_at,
            path=exchange.path,
            headers=headers,
            request=request,
            response=None,
            outcome="completed",
            release_id=BASE_RELEASE,
        )
        exchange.key = self._key_of(draft).encode()
        exchange.draft = structs.replace(draft, request=msgspec.Raw(msgspec.json.encode(request)))
        return exchange.draft

    def _redact_request(self, request: Any) -> tuple[Any, bool]:
        """The request, and whether anything that the model read was replaced."""
        return self._redact_fields(request, _CLIENT_IDS, lambda value: self._redact(value)[0])

    def _redact_response(self, response: Any) -> tuple[Any, bool]:
        """The engine's own ids are left alone: a release id that looks like a card number must not cost the capture."""
        return self._redact_fields(response, _ENGINE_IDS, lambda value: value)

    def _redact_fields(self, body: Any, ids: frozenset[str], clean_id: Callable[[Any], Any]) -> tuple[Any, bool]:
        """Redact a body, its top-level `ids` apart by `clean_id`; whether anything but those was replaced."""
        if not isinstance(body, dict):
            return self._redact(body)
        rest, redacted = self._redact({k: v for k, v in body.items() if k not in ids})
        items = iter(rest.items())  # in the body's order; a field's own name may have been replaced
        clean: dict[str, Any] = {}
        for name, value in body.items():
            if name in ids:
                clean[name] = clean_id(value)
            elif item := next(items, None):
                clean[item[0]] = item[1]
        return clean, redacted

    def _redact(self, value: Any) -> tuple[Any, bool]:
        if self._redactor is None:
            return value, False
        clean, kinds = self._redactor.redact(value)
        for kind, count in kinds.items():
            metrics.GATEWAY_REDACTIONS.labels(kind).inc(count)
        return clean, bool(kinds)

    def _build(self, exchange: Exchange, served: Served) -> Built:
        """Key and value of the record. Redacted text would not be what the captured tokens say: no capture then."""
        draft = self._prepare(exchange)
        answer = served.read()
        response, redacted = self._redact_response(answer.response)
        exchange.redacted = exchange.redacted or redacted
        capture = None if exchange.redacted or answer.outcome != "completed" else served.capture
        record = structs.replace(
            draft,
            completed_at=time.time(),
            response=response,
            outcome=answer.outcome,
            release_id=served.release_id or BASE_RELEASE,
            capture=capture,
        )
        return Built(exchange.key, encode(record), answer.outcome, capture is not None)

    def _write(self, exchange: Exchange, served: Served, build: Callable[[], Built]) -> None:
        if exchange.recorded:
            return
        try:
            built = build()
            self._spool.append(built.key, built.value)
        except Exception as error:
            self._failed(exchange, error)
            return
        exchange.recorded = True
        metrics.GATEWAY_EXCHANGES.labels(built.outcome).inc()
        if not built.captured:
            reason = served.no_capture if served.capture is None else "redacted"
            metrics.GATEWAY_UNTRAINABLE.labels(reason if built.outcome == "completed" else "not_completed").inc()
        metrics.GATEWAY_SPOOL_RECORDS.set(self._spool.records)
        metrics.GATEWAY_SPOOL_BYTES.set(self._spool.size)
        self._wake()

    def _failed(self, exchange: Exchange, error: Exception) -> None:
        if isinstance(error, SpoolFullError):
            self.drop(exchange, error.reason)
        elif isinstance(error, OSError):
            self.drop(exchange, "spool_error", error)
        elif isinstance(error, BodyError):
            self.drop(exchange, error.reason)
        elif isinstance(error, NotJsonError | TooDeepError):
            self.drop(exchange, "request_not_json" if isinstance(error, NotJsonError) else "nested_too_deeply")
        else:
            self.drop(exchange, "internal", error)
