"""How each kind of upstream is asked for its capture, and how that is removed again for the client."""

from __future__ import annotations

from typing import Protocol

from multidict import CIMultiDict

from libs.contracts import Capture
from services.gateway import builtin
from services.gateway.config import CaptureMode


class CaptureFilter(Protocol):
    """Removes from one response what was added for the capture, and keeps it."""

    body: bytes  # the request body to send upstream
    capture: Capture | None
    release_id: str | None
    broken: bool

    def strip(self, body: bytes) -> bytes: ...
    def feed(self, chunk: bytes) -> bytes: ...
    def close(self) -> bytes: ...


def capture_for(
    mode: CaptureMode, path: str, body: bytes, headers: CIMultiDict[str], top_k: int
) -> CaptureFilter | None:
    """The filter for one call, None when the upstream gives no capture. May add to `headers` (upstream's)."""
    if mode == "builtin" and path in builtin.PATHS:
        headers[builtin.HEADER] = str(top_k)
        return builtin.BuiltinCapture(body)
    return None
