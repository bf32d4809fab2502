"""Puts releases into an external engine and takes them out again, so that each response comes from exactly one.

Adapters live beside each other under the name of their release: a new one takes new requests, the old one is unloaded
when its last request has ended. Whole weights have no name: the gate holds new requests back, running ones end, the
weights are replaced, the gate opens. Requests wait then; none fails.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from libs.contracts import BASE_RELEASE, Adapter
from libs.learning.engine.refused import ReleaseRefused
from libs.telemetry.logs import get_logger
from services.policy.external.engines import ExternalEngine
from services.policy.scenarios import Held

_log = get_logger("policy.external")
_FILES = {"lora": "adapter_model.safetensors", "full": "model.safetensors"}


@dataclass(frozen=True, slots=True)
class ExternalRelease:
    """A release in the engine. `adapter` is None where the engine's own weights serve."""

    release_id: str
    adapter: Adapter | None = None

    @property
    def is_adapter(self) -> bool:
        return self.adapter is not None and self.adapter.kind == "lora"


class ExternalReleases:
    """Loads, counts use, unloads. Belongs to the event loop."""

    def __init__(self, engine: ExternalEngine, base_path: str, paths: str = "") -> None:
        """`base_path` is where the engine finds the base's whole weights; `paths` maps HERE=THERE."""
        self._engine, self._base_path = engine, base_path
        self._here, _, self._there = paths.partition("=")
        self._loaded: set[str] = set()
        self._serving: set[str] = set()
        self._running: Counter[str] = Counter()
        self._weights = ExternalRelease(BASE_RELEASE)  # which whole weights the engine holds
        self._path = base_path  # and where they came from
        self._owner: str | None = None  # whose they are
        self._open = asyncio.Event()
        self._open.set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def load(self, release_id: str, adapter: Adapter) -> Held[ExternalRelease]:
        """Make a release ready to serve. Raises ReleaseRefused; what served before still does."""
        await asyncio.to_thread(_check, release_id, adapter)
        release = ExternalRelease(release_id, adapter)
        if release.is_adapter:
            await self._engine.load(release_id, self.seen_by_engine(adapter.uri))
            self._loaded.add(release_id)
            return Held(release, 1)
        scenario = release_id.rpartition("@")[0]
        if self._owner not in (None, scenario):
            raise ReleaseRefused(
                f"{release_id}: the engine's whole weights already belong to scenario {self._owner}; "
                "train further scenarios with LoRA or give them an engine of their own",
                reason="engine_taken",
            )
        await self._replace(release, self.seen_by_engine(adapter.uri))
        self._owner = scenario
        return Held(release, 0)

    async def load_base(self, scenario: str) -> Held[ExternalRelease]:
        """Put the base's whole weights back, if this scenario's took their place."""
        if self._owner == scenario:
            await self._replace(ExternalRelease(BASE_RELEASE), self._base_path)
            self._owner = None
        return Held(ExternalRelease(BASE_RELEASE), 0)

    async def reload_adapter(self, release: ExternalRelease) -> None:
        """Load an adapter again that the engine no longer knows: it was restarted."""
        if release.adapter is not None:
            await self._engine.load(release.release_id, self.seen_by_engine(release.adapter.uri))
            self._loaded.add(release.release_id)

    async def model_of(self, release: ExternalRelease) -> str:
        """What a request's `model` must be."""
        base = await self._engine.base_model()
        return self._engine.model_of(base, release.release_id) if release.is_adapter else base

    @asynccontextmanager
    async def using(self, release: ExternalRelease) -> AsyncIterator[ExternalRelease]:
        """Count a request; yields the release that will really make it, after waiting for a swap in progress."""
        await self._open.wait()
        actual = release if release.is_adapter else self._weights
        self._running[actual.release_id] += 1
        self._idle.clear()
        try:
            yield actual
        finally:
            self._running -= Counter([actual.release_id])
            if not self._running:
                self._idle.set()
            if not self._running[actual.release_id]:
                self._unload_unused()

    def serving(self, releases: Iterable[ExternalRelease]) -> None:
        """These serve now; loaded ones that neither serve nor run are unloaded."""
        self._serving = {release.release_id for release in releases}
        self._unload_unused()

    def seen_by_engine(self, uri: str) -> str:
        """A checkpoint's path as the engine sees it."""
        path = uri.removeprefix("file://")
        return self._there + path[len(self._here) :] if self._here and path.startswith(self._here) else path

    async def _replace(self, release: ExternalRelease, path: str) -> None:
        self._open.clear()
        try:
            await self._idle.wait()
            try:
                await self._engine.reload(path)
            except ReleaseRefused:
                await self._engine.reload(self._path)  # it may have stopped half-way
                raise
            self._weights, self._path = release, path
        finally:
            self._open.set()

    def _unload_unused(self) -> None:
        for name in self._loaded - self._serving - set(self._running):
            self._loaded.discard(name)
            task = asyncio.create_task(self._unload(name))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _unload(self, name: str) -> None:
        try:
            await self._engine.unload(name)
        except ReleaseRefused as error:
            _log.warning("not unloaded", release=name, error=str(error))


def _check(release_id: str, adapter: Adapter) -> None:
    """The published digest, where the file can be seen from here. Raises ReleaseRefused."""
    path = Path(adapter.uri.removeprefix("file://")) / _FILES[adapter.kind]
    try:
        with path.open("rb") as source:
            found = hashlib.file_digest(source, "sha256").hexdigest()
    except OSError as error:
        raise ReleaseRefused(f"{release_id}: cannot read {path}: {error}", reason="weights_missing") from error
    if found != adapter.digest:
        raise ReleaseRefused(f"{release_id}: {path} has sha256 {found}, not {adapter.digest}", reason="digest")
