"""What an upstream's answer was: the provider's JSON as far as it came, and how the exchange ended."""

from __future__ import annotations

from typing import Any, NamedTuple

from libs.contracts.traffic_raw import Outcome
from libs.dialects.assembly import Assembler, assembler_for
from libs.dialects.loose import NotJsonError, TooDeepError, read_json

_SSE_FIELDS = (b"data:", b"event:", b"id:", b"retry:", b":")  # how a line of an event stream starts


class Answer(NamedTuple):
    """The response for the record (None: nothing was served) and the exchange's outcome."""

    response: Any
    outcome: Outcome


def of_body(body: bytes, path: str, status: int, *, asked_stream: bool) -> Answer:
    """A whole body, uncompressed. Any bytes are taken: what is no JSON, or too deeply nested, is kept as text."""
    try:
        response = read_json(body)
    except (NotJsonError, TooDeepError):
        if asked_stream and _looks_like_events(body) and (assembler := assembler_for(path)):
            assembler.feed(body)
            return of_stream(assembler, status)
        response = body.decode("utf-8", "replace") or None  # an error page, for instance
    return Answer(response, _outcome(status, response))


def of_stream(assembler: Assembler, status: int) -> Answer:
    """A stream that its upstream ended in order."""
    response = served(assembler)
    whole = assembler.finished and assembler.error is None and not assembler.broken
    return Answer(response, _outcome(status, response) if whole else "upstream_error")


def served(assembler: Assembler) -> Any:
    """The response as far as it was streamed; the error, if that is all that came."""
    response = assembler.result()
    return assembler.error if response is None else response


def _outcome(status: int, response: Any) -> Outcome:
    """`completed` needs a success status and an object that is no error: redirects and empty answers say nothing."""
    fine = 200 <= status < 300 and isinstance(response, dict) and not response.get("error")
    return "completed" if fine else "upstream_error"


def _looks_like_events(body: bytes) -> bool:
    return body[:64].removeprefix(b"\xef\xbb\xbf").lstrip().startswith(_SSE_FIELDS)
