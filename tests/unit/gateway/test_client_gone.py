"""A write that fails is the client's doing, a read that fails the upstream's, whatever aiohttp calls the two."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from multidict import CIMultiDict

from services.gateway.proxy import Proxy


class Recording:
    """Notes how the exchange ended."""

    streamed, exchange_id = True, "x"

    def __init__(self) -> None:
        self.ends: list[str] = []

    def begin(self, _status: int, _headers: Any) -> None:
        return None

    def piece(self, chunk: bytes) -> bytes:
        return chunk

    def may_end(self, piece: bytes) -> bool:
        return b"[DONE]" in piece

    def feed(self, _piece: bytes) -> None:
        return None

    async def feed_last(self, _piece: bytes) -> None:
        return None

    async def ended(self) -> bytes:
        self.ends.append("ended")
        return b""

    async def cut(self) -> None:
        self.ends.append("upstream_error")

    def client_gone(self) -> None:
        self.ends.append("client_gone")


def upstream(*pieces: bytes, error: Exception | None = None) -> Any:
    async def iter_any() -> AsyncIterator[bytes]:
        for piece in pieces:
            yield piece
        if error is not None:
            raise error

    content = SimpleNamespace(iter_any=iter_any)
    return SimpleNamespace(status=200, reason="OK", headers=CIMultiDict(), content=content)


async def answered(monkeypatch: pytest.MonkeyPatch, up: Any, *, fails_at: bytes) -> list[str]:
    async def prepare(_self: web.StreamResponse, _request: Any) -> None:
        return None

    async def write(_self: web.StreamResponse, data: bytes) -> None:
        if data == fails_at:
            raise aiohttp.ClientConnectionResetError("Cannot write to closing transport")

    async def write_eof(_self: web.StreamResponse, _data: bytes = b"") -> None:
        if fails_at == b"eof":
            raise aiohttp.ClientConnectionResetError("Cannot write to closing transport")

    for name, fake in (("prepare", prepare), ("write", write), ("write_eof", write_eof)):
        monkeypatch.setattr(web.StreamResponse, name, fake)
    recording: Any = Recording()
    proxy, request = Proxy.__new__(Proxy), SimpleNamespace(transport=None)
    try:
        await proxy._answer(request, up, recording, None)  # type: ignore[arg-type]
    except ConnectionResetError:
        recording.ends.append("raised")
    return recording.ends


@pytest.mark.parametrize("fails_at", [b"data: 1\n\n", b"data: [DONE]\n\n"])
async def test_a_write_that_fails_is_the_client_gone(monkeypatch: pytest.MonkeyPatch, fails_at: bytes) -> None:
    ends = await answered(monkeypatch, upstream(b"data: 1\n\n", b"data: [DONE]\n\n"), fails_at=fails_at)
    assert ends == ["client_gone", "raised"]


async def test_a_read_that_fails_is_the_upstream(monkeypatch: pytest.MonkeyPatch) -> None:
    for error in (aiohttp.ClientPayloadError("cut"), aiohttp.ClientConnectionResetError("reset"), TimeoutError()):
        assert await answered(monkeypatch, upstream(b"data: 1\n\n", error=error), fails_at=b"") == ["upstream_error"]
