"""Probe answers on disk, so that the serving release is not asked again after a restart."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec

from libs.contracts import Adapter
from libs.learning.checkpoint import write_file_atomically
from libs.learning.gate import Prober
from libs.learning.probes import Answer


class _Stored(msgspec.Struct, frozen=True):
    key: str
    answers: list[Answer]


class ProbeFiles:
    """The base's answers lie beside the scenarios, a release's beside its optimizer. Other probes: asked again."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._memory: dict[str, _Stored] = {}

    def get(self, release_id: str, weights: Adapter | None, prober: Prober) -> list[Answer] | None:
        path = self._path(weights)
        stored = self._memory.get(release_id)
        if stored is None and path.exists():
            try:
                stored = msgspec.json.decode(path.read_bytes(), type=_Stored)
            except (msgspec.DecodeError, msgspec.ValidationError):
                return None
        return stored.answers if stored is not None and stored.key == _key(weights, prober) else None

    def put(self, release_id: str, weights: Adapter | None, prober: Prober, answers: list[Answer]) -> None:
        stored = _Stored(_key(weights, prober), answers)
        if len(self._memory) > 64:
            self._memory.clear()
        self._memory[release_id] = stored
        write_file_atomically(self._path(weights), msgspec.json.encode(stored))

    def _path(self, weights: Adapter | None) -> Path:
        return Path(weights.uri) / "trainer" / "probes.json" if weights else self._root / "base-probes.json"


def _key(weights: Adapter | None, prober: Prober) -> str:
    """Changes with the weights, the base and the probes."""
    parts = (weights.digest if weights else "", prober.fingerprint)
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()
