"""What the assemblers of all dialects share: decoding of events, and the merge of partial JSON objects."""

from __future__ import annotations

from typing import Any, ClassVar, Protocol

from libs.dialects.assembly.sse import Event, SseParser
from libs.dialects.loose import NotJsonError, TooDeepError, clean, decode

Json = dict[str, Any]
_WRONG_SHAPE = (AttributeError, KeyError, TypeError, ValueError, IndexError, RecursionError, OverflowError)


class Assembler(Protocol):
    """Fed with the bytes of one streamed response, gives what the same call would have returned without streaming."""

    TERMINAL: ClassVar[tuple[bytes, ...]]  # a piece without any of these cannot end the response

    @property
    def complete(self) -> bool:
        """True once the provider's own end-of-response event was seen."""
        ...

    @property
    def finished(self) -> bool:
        """True when the response is whole, even if the end-of-response event never came."""
        ...

    @property
    def error(self) -> Json | None:
        """The error that the provider sent inside the stream, if it did."""
        ...

    @property
    def broken(self) -> bool:
        """True when events were left out or the response could not be built, because they are not the dialect's."""
        ...

    def feed(self, chunk: bytes) -> None:
        """Take the next piece; the pieces may be cut anywhere. Never raises, whatever they hold."""
        ...

    def result(self) -> Any | None:
        """The response as far as it came, None before the first usable event."""
        ...


class EventAssembler:
    """The part of an assembler that does not depend on the dialect. Subclasses take one decoded event at a time."""

    TERMINAL: ClassVar[tuple[bytes, ...]] = (b"[DONE]",)

    def __init__(self) -> None:
        self._parser = SseParser()
        self._closed = False
        self.complete = False
        self.broken = False
        self._exact = True  # no text so far that could hold lone surrogates
        self.error: Json | None = None

    def feed(self, chunk: bytes) -> None:
        for event in self._parser.feed(chunk):
            self._event(event)

    def result(self) -> Any | None:
        """The response as far as it came. Ends the stream: feed nothing afterwards."""
        if not self._closed:
            self._closed = True
            for event in self._parser.close():
                self._event(event)
        try:
            response = self.build()
            return response if self._exact else clean(response)
        except _WRONG_SHAPE:
            self.broken = True
            return None

    @property
    def finished(self) -> bool:
        return self.complete

    def build(self) -> Any | None:
        raise NotImplementedError

    def take(self, name: str, payload: Json) -> None:
        raise NotImplementedError

    def _event(self, event: Event) -> None:
        if event.data.strip() == b"[DONE]":
            self.complete = True
            return
        try:
            payload, exact = decode(event.data)
        except (NotJsonError, TooDeepError):
            return  # half an event at the end of a cut stream, or text that is not this dialect's
        if not isinstance(payload, dict):
            return
        self._exact = self._exact and exact
        if is_error(event.name, payload):
            self.error = self.error or payload
        try:
            self.take(event.name, payload)
        except _WRONG_SHAPE:
            self.broken = True


def is_error(name: str, payload: Json) -> bool:
    """Whether an event tells of an error, in the form of any provider or engine.

    OpenAI's and OpenRouter's `error` member (also beside choices), Anthropic's and OpenAI's `error` event, vLLM's and
    SGLang's `object: error`. A member that is null or empty is none.
    """
    return name == "error" or bool(payload.get("error")) or "error" in (payload.get("type"), payload.get("object"))


def merge(into: Json, part: Json, *, replace: frozenset[str] = frozenset()) -> None:
    """Add a partial object: strings grow, lists grow (by `index` where items have one), objects merge, rest replaces.

    `replace` names string fields that are repeated whole (role, id, type) rather than sent in pieces.
    """
    for key, value in part.items():
        have = into.get(key)
        if value is None:
            into.setdefault(key, None)
        elif have is None:
            into[key] = fresh(value, replace=replace)
        elif isinstance(value, str) and isinstance(have, str):
            into[key] = value if key in replace else have + value
        elif isinstance(value, dict) and isinstance(have, dict):
            merge(have, value, replace=replace)
        elif isinstance(value, list) and isinstance(have, list):
            extend(have, value, replace=replace)
        else:
            into[key] = value


def extend(into: list[Any], part: list[Any], *, replace: frozenset[str] = frozenset()) -> None:
    """Append a partial list; items that carry an `index` merge with the item of the same index."""
    for item in part:
        index = item.get("index") if isinstance(item, dict) else None
        if not isinstance(index, int):
            into.append(item)
            continue
        slot = next((i for i in into if isinstance(i, dict) and i.get("index") == index), None)
        if slot is None:
            into.append(dict(item))
        else:
            merge(slot, item, replace=replace | {"index"})


def fresh(value: Any, *, replace: frozenset[str] = frozenset()) -> Any:
    """A copy that later merges may change; lists are merged item by item so that indexed items unite."""
    if isinstance(value, dict):
        copy: Json = {}
        merge(copy, value, replace=replace)
        return copy
    if isinstance(value, list):
        items: list[Any] = []
        extend(items, value, replace=replace)
        return items
    return value
