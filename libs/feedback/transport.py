"""HTTP for the PRM judge: one POST, a status and a body, or a named failure. Tests may pass another transport."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Protocol

import aiohttp

_MAX_BODY_BYTES = 4 * 1024 * 1024


class TransportFailure(Exception):
    """No HTTP answer. `reason` is timeout, connection or too_large."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


class Transport(Protocol):
    async def post(self, body: bytes, timeout_seconds: float) -> tuple[int, bytes]:
        """Status and body of one POST. Raises TransportFailure."""
        ...


class HttpTransport:
    """POSTs to one URL over a pooled aiohttp session."""

    def __init__(self, session: aiohttp.ClientSession, url: str, headers: Mapping[str, str]) -> None:
        self._session = session
        self._url = url
        self._headers = {"content-type": "application/json", **headers}

    async def post(self, body: bytes, timeout_seconds: float) -> tuple[int, bytes]:
        try:
            async with asyncio.timeout(timeout_seconds):
                async with self._session.post(self._url, data=body, headers=self._headers) as response:
                    return response.status, await _bounded(response)
        except TimeoutError as error:
            raise TransportFailure("timeout", f"no answer within {timeout_seconds} s") from error
        except (aiohttp.ClientError, OSError) as error:
            raise TransportFailure("connection", f"{type(error).__name__}: {error}") from error


async def _bounded(response: aiohttp.ClientResponse) -> bytes:
    """The body; an endless one is given up at the bound, not when the memory or the time is used up."""
    read = bytearray()
    async for chunk in response.content.iter_any():
        read += chunk
        if len(read) > _MAX_BODY_BYTES:
            raise TransportFailure("too_large", f"more than {_MAX_BODY_BYTES} bytes")
    return bytes(read)


@asynccontextmanager
async def open_transport(base_url: str, api_key: str, *, max_connections: int) -> AsyncIterator[HttpTransport]:
    """A transport for `<base_url>/chat/completions`."""
    headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
    # Timeouts are per call; redirects could carry the key elsewhere and are not followed by a POST anyway.
    connector = aiohttp.TCPConnector(limit=max_connections)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None)) as session:
        yield HttpTransport(session, f"{base_url.rstrip('/')}/chat/completions", headers)
