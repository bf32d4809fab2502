"""Votes as JSONL, one question a line: {"key", "ballots"}. Recorded while judging, replayed without asking anyone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import IO

import msgspec

from libs.errors import ConfigError
from libs.feedback.engine import BallotStore
from libs.feedback.judge import Ballot


class Line(msgspec.Struct, frozen=True):
    key: str
    ballots: list[Ballot]


class RecordedVotes:
    """A BallotStore over a file: what it holds is replayed, what is new is appended. `inner` is asked in between."""

    def __init__(self, path: Path, inner: BallotStore | None = None, *, replay: bool = True) -> None:
        self._path = path
        self._inner = inner
        self._known = _load(path) if replay and path.exists() else {}
        self._file: IO[bytes] | None = None

    async def get(self, key: str) -> list[Ballot] | None:
        if key in self._known:
            return self._known[key]
        return await self._inner.get(key) if self._inner else None

    async def put(self, key: str, ballots: Sequence[Ballot]) -> None:
        if self._file is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._path.open("ab")
        self._file.write(msgspec.json.encode(Line(key, list(ballots))) + b"\n")
        self._file.flush()
        if self._inner:
            await self._inner.put(key, ballots)

    def __enter__(self) -> RecordedVotes:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _load(path: Path) -> dict[str, list[Ballot]]:
    found: dict[str, list[Ballot]] = {}
    for number, raw in enumerate(path.read_bytes().splitlines(), 1):
        try:
            line = msgspec.json.decode(raw, type=Line)
        except msgspec.DecodeError as error:
            raise ConfigError(f"{path}:{number} is no recorded vote: {error}") from error
        found[line.key] = line.ballots
    return found
