"""Which headers travel where. Credentials of one side never reach the other side, a log or a topic."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

from multidict import CIMultiDict

from services.gateway.config import AuthStyle

# RFC 9110 section 7.6.1, and what the HTTP client sets itself.
HOP_BY_HOP = frozenset(
    {"connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer"}
    | {"transfer-encoding", "upgrade", "host", "content-length", "expect"}
)
CREDENTIALS = frozenset({"authorization", "x-api-key", "api-key", "cookie", "proxy-authorization", "x-goog-api-key"})
_OURS = ("x-clawback-",)
RECORD_OFF = "x-clawback-record"
SCENARIO = "x-reef-scenario"
RELEASE = "x-clawback-release"


def upstream_headers(
    client: Iterable[tuple[str, str]], *, path: str, key: str | None, auth: AuthStyle, forward_credentials: bool
) -> CIMultiDict[str]:
    """The client's headers for the upstream, its credential replaced by the upstream's own."""
    items = list(client)
    dropped = HOP_BY_HOP | _named_in_connection(items)
    if not forward_credentials or key:
        dropped = dropped | CREDENTIALS
    out: CIMultiDict[str] = CIMultiDict(
        (k, v) for k, v in items if (low := k.lower()) not in dropped and not low.startswith(_OURS)
    )
    if key:
        anthropic = path.removeprefix("/v1").startswith("/messages")
        style = auth if auth != "auto" else "x-api-key" if anthropic else "bearer"
        if style == "bearer":
            out["Authorization"] = f"Bearer {key}"
        else:
            out["x-api-key"] = key
    return out


def client_headers(upstream: Iterable[tuple[str, str]]) -> CIMultiDict[str]:
    """The upstream's headers for the client: all but the hop-by-hop ones and cookies (credentials of our account)."""
    items = list(upstream)
    dropped = (HOP_BY_HOP - {"content-length"}) | _named_in_connection(items) | {"set-cookie"}
    return CIMultiDict((k, v) for k, v in items if k.lower() not in dropped)


def credential(headers: Mapping[str, str]) -> str:
    """The client's token, from a bearer or an x-api-key header; "" when there is none."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and token.strip():
        return token.strip()
    return headers.get("x-api-key", "").strip()


def tenant_of(token: str) -> str:
    """A stable name for a credential that cannot be turned back: the head of its SHA-256."""
    return hashlib.sha256(token.encode()).hexdigest()[:16] if token else "anonymous"


def _named_in_connection(items: Iterable[tuple[str, str]]) -> frozenset[str]:
    return frozenset(
        name.strip().lower() for k, v in items if k.lower() == "connection" for name in v.split(",") if name.strip()
    )
