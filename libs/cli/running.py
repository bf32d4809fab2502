"""Run a command and show what it is at. Standard library only: set-up uses it before anything is installed."""

from __future__ import annotations

import os
import queue
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

_INTERRUPTIONS = (signal.SIGINT, signal.SIGTERM)
_LARGE_MB = 20.0  # a download that people wait for


class PipProgress:
    """What pip is at, in one line that is renewed on a terminal, and in a line for each tenth elsewhere.

    `total` packages are asked for; those installed are counted in `site`, because pip says nothing while it unpacks.
    """

    def __init__(self, total: int, site: Path) -> None:
        self._total, self._site = total, site
        self._found = self._tenths = 0
        self._installing = False
        self._live = sys.stdout.isatty()

    def line(self, text: str) -> None:
        """Take one line of pip's output."""
        if match := re.match(r"(?:Collecting|Processing|Requirement already satisfied:) (\S+)", text):
            self._found += 1
            self._show("found", self._found, match[1].rpartition("/")[2])
        elif match := re.match(r"\s*Downloading ([^-\s]+)-\S+ \(([\d.]+) ([MG]B)\)", text):
            name, size, unit = match.groups()
            self._say(f"downloading {name} ({size} {unit})", always=unit == "GB" or float(size) >= _LARGE_MB)
        elif text.startswith("Installing collected packages"):
            self._installing = True
            self._tenths = 0
            self.tick()

    def tick(self) -> None:
        """Called every second while pip says nothing."""
        if self._installing:
            self._show("installed", len(list(self._site.glob("*.dist-info"))), "")

    def _show(self, what: str, count: int, name: str) -> None:
        count = min(count, self._total)
        tenths, before = 10 * count // max(1, self._total), self._tenths
        self._tenths = max(tenths, before)
        self._say(f"{what} {count} of {self._total} packages  {name}".rstrip(), always=tenths > before)

    def _say(self, text: str, *, always: bool) -> None:
        if self._live:
            print(f"\r\033[K   {text[:100]}", end="", flush=True)
        elif always:
            print(f"   {text}", flush=True)

    def end(self) -> None:
        """Leave the renewed line."""
        if self._live:
            print("\r\033[K", end="", flush=True)


def run_once(
    command: Sequence[str | os.PathLike[str]], cwd: Path, progress: PipProgress | None = None
) -> tuple[int, str]:
    """Run a command to its end: exit status and output. It is stopped when this process is interrupted."""
    # An interruption that came while the command starts would leave it running with nobody who knows of it.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _INTERRUPTIONS)
    try:
        process = subprocess.Popen(
            [os.fspath(part) for part in command],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            cwd=cwd,
            preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_SETMASK, before),
        )
        return _followed(process, before, progress)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _followed(
    process: subprocess.Popen[str], mask: set[int | signal.Signals], progress: PipProgress | None
) -> tuple[int, str]:
    """Read a command's output to its end; interruptions may come again once all is set to stop it."""
    said: queue.SimpleQueue[str] = queue.SimpleQueue()

    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            said.put(line)
        said.put("")

    threading.Thread(target=read, daemon=True).start()
    output: list[str] = []
    try:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        while not output or output[-1]:
            try:
                output.append(said.get(timeout=1.0))
                if progress and output[-1]:
                    progress.line(output[-1])
            except queue.Empty:
                if progress:
                    progress.tick()
        return process.wait(), "".join(output)
    finally:
        if progress:
            progress.end()
        if process.poll() is None:
            process.terminate()
            process.wait()
