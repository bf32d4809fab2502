"""How each kind of upstream is asked for its capture, and how that is removed again for the client."""

from __future__ import annotations

from typing import Protocol

from multidict import CIMultiDict

from libs.contracts import Capture
from services.gateway.capture import ask as asking
from services.gateway.capture import builtin
from services.gateway.capture.sglang import SglangCapture
from services.gateway.capture.vllm import VllmCapture
from services.gateway.config import CaptureMode
from services.gateway.encoding import BodyError, decompress

_CHAT = "/v1/chat/completions"


class CaptureFilter(Protocol):
    """Removes from one response what was added for the capture, and keeps it."""

    body: bytes  # the request body to send upstream
    release_id: str | None
    broken: bool

    @property
    def capture(self) -> Capture | None: ...

    def strip(self, body: bytes) -> bytes: ...
    def feed(self, chunk: bytes) -> bytes: ...
    def close(self) -> bytes: ...


def capture_for(
    mode: CaptureMode, path: str, body: bytes, headers: CIMultiDict[str], top_k: int, max_bytes: int
) -> CaptureFilter | str:
    """The filter for one call, or the reason why it gets no capture. May change `headers` (upstream's).

    A request of over `max_bytes` once opened gets none: it is not recorded either.
    """
    if mode == "none":
        return "upstream_gives_none"
    if mode == "builtin":
        if path not in builtin.PATHS:
            return "path_without_capture"
        headers[builtin.HEADER] = str(top_k)
        return builtin.BuiltinCapture(body)
    if path != _CHAT:
        return "path_without_capture"
    try:
        plain = decompress(body, headers.get("content-encoding", ""), max_bytes)
    except BodyError as error:
        return error.reason
    ask = asking.read(plain)
    if ask is None:
        return "request_not_json"
    if ask.logprobs:
        return "client_asked_logprobs"  # its own values could not be told from ours
    if ask.n not in (None, 1):
        return "several_choices"
    if mode == "sglang" and ask.stream:
        return "streamed_by_sglang"
    headers.popall("content-encoding", None)
    return VllmCapture(ask, plain, top_k) if mode == "vllm" else SglangCapture(ask, plain, top_k)


__all__ = ["CaptureFilter", "capture_for"]
