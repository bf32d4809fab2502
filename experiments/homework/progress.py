"""Live progress: a small rich panel on a terminal, one plain line a wave otherwise."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from experiments.homework.sessions import SessionResult
from experiments.homework.watch import Facts


class Progress:
    """Shows what happens now. `show` is cheap and may be called as often as something changes."""

    def __init__(self, total: int, ttl_seconds: float, console: Console | None = None) -> None:
        self.console = console or Console()
        self._total, self._ttl = total, ttl_seconds
        self._started = time.monotonic()
        self._doing = "starting"
        self._results: Sequence[SessionResult] = ()
        self._facts: Facts | None = None
        self._live: Live | None = None

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self._live = Live(get_renderable=self.render, console=self.console, refresh_per_second=4)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def doing(self, what: str) -> None:
        """Name the stage. Printed as a line where there is no live panel."""
        self._doing = what
        if self._live is None:
            self.console.print(f"[{self._elapsed():5.0f} s] {what}", markup=False, highlight=False, soft_wrap=True)

    def show(self, results: Sequence[SessionResult], facts: Facts, *, line: bool = False) -> None:
        """Take in the newest results. `line` prints them where there is no live panel (the end of a wave)."""
        self._results, self._facts = results, facts
        if line and self._live is None:
            self.console.print(
                f"[{self._elapsed():5.0f} s] {self.line()}", markup=False, highlight=False, soft_wrap=True
            )

    def line(self) -> str:
        """The state as one plain line."""
        cells = dict(self._cells())
        return "  ".join(f"{name} {value}" for name, value in cells.items())

    def render(self) -> Panel:
        """The state as a panel."""
        grid = Table.grid(padding=(0, 2))
        grid.add_column(style="dim")
        grid.add_column()
        grid.add_row("", ProgressBar(total=self._total, completed=len(self._results), width=60))
        marks = Text()
        for result in sorted(self._results, key=lambda r: r.number):
            marks.append("● " if result.passed else "○ ", style="green" if result.passed else "red")
        grid.add_row("first replies", marks)
        for name, value in self._cells():
            grid.add_row(name, value)
        head = Text(f"{self._doing}   {self._elapsed():.0f} s")
        return Panel(Group(head, grid), title="clawback: homework", width=100)

    def _elapsed(self) -> float:
        return time.monotonic() - self._started

    def _cells(self) -> list[tuple[str, str]]:
        passed = sum(r.passed for r in self._results)
        cells = [("sessions", f"{len(self._results)}/{self._total}"), ("first-reply passes", str(passed))]
        if self._facts is None:
            return cells
        counts = self._facts.counts(self._ttl)
        losses = [step.metrics.get("loss") for step in self._facts.steps][-6:]
        return [
            *cells,
            ("match rate", _rate(counts.match_rate)),
            ("signal rate", _rate(counts.signal_rate)),
            ("trained turns", str(self._facts.trained)),
            ("serving", self._facts.serving.rpartition("@")[2]),
            ("step losses", " ".join(f"{loss:.3f}" for loss in losses if loss is not None) or "–"),
        ]


def _rate(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"
