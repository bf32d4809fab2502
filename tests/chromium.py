"""A headless Chromium over its DevTools protocol: open a page, run JavaScript in it, wait for what it shows."""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from tests.eventually import eventually

BINARY = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Page:
    """One tab."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._ids = itertools.count(1)
        self.errors: list[str] = []

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        number = next(self._ids)
        await self._socket.send_json({"id": number, "method": method, "params": params})
        while True:
            message: dict[str, Any] = await self._socket.receive_json(timeout=30)
            if message.get("method") == "Runtime.exceptionThrown":
                self.errors.append(str(message["params"]["exceptionDetails"]))
            if message.get("method") == "Log.entryAdded" and message["params"]["entry"]["level"] == "error":
                self.errors.append(message["params"]["entry"]["text"])
            if message.get("id") == number:
                assert "error" not in message, message
                result: dict[str, Any] = message["result"]
                return result

    async def js(self, expression: str) -> Any:
        """The value of an expression, awaited if it is a promise."""
        done = await self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in done, done["exceptionDetails"]
        return done["result"].get("value")

    async def open(self, url: str) -> None:
        await self.call("Page.navigate", url=url)

    async def until(self, expression: str) -> Any:
        """The expression's first true value."""
        return await eventually(lambda: self.js(expression), why=expression)


@asynccontextmanager
async def chromium(profile: Path) -> AsyncIterator[Page]:
    """A browser with a profile of its own, ended with all its processes."""
    assert BINARY is not None
    flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
    argv = [BINARY, *flags, "--remote-debugging-port=0", f"--user-data-dir={profile}", "about:blank"]
    nowhere = asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(*argv, stdout=nowhere, stderr=nowhere, start_new_session=True)
    try:
        told = profile / "DevToolsActivePort"

        def port() -> str | None:
            assert process.returncode is None, "the browser ended"
            lines = told.read_text().splitlines() if told.exists() else []
            return lines[0] if len(lines) > 1 else None

        number = await eventually(port, why="the browser's debugging port")
        async with aiohttp.ClientSession() as http:

            async def tab() -> str | None:
                async with http.get(f"http://127.0.0.1:{number}/json") as answer:
                    pages = [t for t in await answer.json() if t["type"] == "page"]
                    return pages[0]["webSocketDebuggerUrl"] if pages else None

            async with http.ws_connect(await eventually(tab), max_msg_size=0) as socket:
                page = Page(socket)
                for domain in ("Page", "Runtime", "Log"):
                    await page.call(f"{domain}.enable")
                yield page
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
