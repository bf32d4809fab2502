"""What the trainer remembers of each scenario, in <home>/checkpoints/<scenario>/state.json.

The file is the point at which a batch counts as done: it is replaced in one step, after the release's weights are on
disk and before the event is published. It holds the event until that is published, so a crash in between publishes it
at the next start, and the position to read from, which passes the batch only once its event is out.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import quote

import msgspec

from libs.contracts import PolicyRelease
from libs.contracts.release_chain import Chain, fold
from libs.errors import RetryError, StopError
from libs.learning.checkpoint import write_file_atomically

# How many batches and feedback ids are remembered to recognise repeats: far more than a topic can redeliver.
_KEEP_BATCHES = 2_000
_KEEP_TRAINED = 50_000


class ScenarioState(msgspec.Struct, frozen=True, kw_only=True):
    """Everything about one scenario except tensors. `positions`: "<topic>-<partition>" -> next offset to read."""

    chain: Chain
    base_digest: str
    batches: list[str] = []  # ids of the batches that are done, newest last
    trained: list[str] = []  # feedback ids that reached a step, newest last
    commands: list[str] = []  # rollbacks and promotions that were applied, newest last
    positions: dict[str, int] = {}
    pending: PolicyRelease | None = None  # decided but not known to be published


def after_batch(state: ScenarioState, event: PolicyRelease, positions: dict[str, int]) -> ScenarioState:
    """The state once `event` was decided for a batch; `positions` still lets the batch be read again."""
    return msgspec.structs.replace(
        state,
        chain=fold(state.chain, event),
        batches=[*state.batches, event.batch_id or ""][-_KEEP_BATCHES:],
        trained=[*state.trained, *event.trained][-_KEEP_TRAINED:],
        positions={**state.positions, **positions},
        pending=event,
    )


def after_publish(state: ScenarioState, batch_id: str, positions: dict[str, int]) -> ScenarioState:
    """The state once the batch's event is acknowledged by the broker."""
    done = state.pending is not None and state.pending.batch_id == batch_id
    return msgspec.structs.replace(
        state, positions={**state.positions, **positions}, pending=None if done else state.pending
    )


def after_command(state: ScenarioState, event: PolicyRelease) -> ScenarioState:
    """The state after a rollback or promotion; the same command applies once, however often it is delivered."""
    if _name(event) in state.commands:
        return state
    return with_own(msgspec.structs.replace(state, chain=fold(state.chain, event)), event)


def with_own(state: ScenarioState, *events: PolicyRelease) -> ScenarioState:
    """The state that knows these events as its own: read back after a later step they must not undo it."""
    names = [_name(event) for event in events]
    return msgspec.structs.replace(state, commands=[*state.commands, *names][-_KEEP_BATCHES:])


def _name(event: PolicyRelease) -> str:
    return f"{event.event} {event.release_id} {event.created_at}"


def prune(state: ScenarioState, keep: int) -> tuple[ScenarioState, list[str], list[str]]:
    """(state without old releases, ids whose files can go, ids whose optimizer can go).

    The newest `keep` releases stay, and the serving one and its parent whatever their age; an optimizer's state is
    kept for these two and the newest. A release that is gone cannot be rolled back to; the log still tells of it.
    """
    by_age = sorted(state.chain.releases.values(), key=lambda r: r.number, reverse=True)
    needed = set(state.chain.lineage()[:2]) | {r.release_id for r in by_age[:1]}
    kept = {r.release_id for r in by_age[:keep]} | needed
    gone = [r.release_id for r in by_age if r.release_id not in kept]
    slim = [r.release_id for r in by_age if r.release_id in kept - needed]
    releases = {i: r for i, r in state.chain.releases.items() if i in kept}
    chain = msgspec.structs.replace(state.chain, releases=releases)
    return msgspec.structs.replace(state, chain=chain), gone, slim


class Store:
    """The states of all scenarios under one directory, read once and written through."""

    def __init__(self, home: Path, base_digest: str) -> None:
        self.root = home / "checkpoints"
        self._base_digest = base_digest
        self._states: dict[str, ScenarioState] = {}
        for path in sorted(self.root.glob("*/state.json")):
            state = self._read(path)
            self._states[state.chain.scenario] = state

    def _read(self, path: Path) -> ScenarioState:
        try:
            state = msgspec.json.decode(path.read_bytes(), type=ScenarioState)
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            raise StopError(f"{path} is damaged ({error}); restore it from a backup", reason="checkpoint") from error
        if state.base_digest != self._base_digest and state.chain.number:
            raise StopError(
                f"{path} belongs to another base model; set trainer_model to that one or move {path.parent} away",
                reason="checkpoint",
            )
        return state

    def scenarios(self) -> list[str]:
        return sorted(self._states)

    def get(self, scenario: str) -> ScenarioState:
        """The scenario's state; a new one serves the base."""
        return self._states.get(scenario) or ScenarioState(
            chain=Chain(scenario=scenario), base_digest=self._base_digest
        )

    def put(self, state: ScenarioState) -> None:
        """Make the state durable, then current. Raises RetryError (reason "disk")."""
        path = self.directory(state.chain.scenario) / "state.json"
        try:
            write_file_atomically(path, msgspec.json.encode(state))
        except OSError as error:
            raise RetryError(f"cannot write {path}: {error}; free or repair the disk", reason="disk") from error
        self._states[state.chain.scenario] = state

    def put_pruned(self, state: ScenarioState, keep: int) -> None:
        """Put the state without old releases, then remove their files: a crash in between leaves files, no gaps."""
        state, gone, slim = prune(state, keep)
        self.put(state)
        for release_id in gone:
            shutil.rmtree(self.release_directory(state.chain.scenario, release_id), ignore_errors=True)
        for release_id in slim:
            directory = self.release_directory(state.chain.scenario, release_id)
            with contextlib.suppress(OSError):
                (directory / "trainer" / "optimizer.safetensors").unlink(missing_ok=True)

    def directory(self, scenario: str) -> Path:
        """Where a scenario's releases lie. Any name makes one safe path component."""
        return self.root / (quote(scenario, safe="").replace(".", "%2E") or "%")

    def release_directory(self, scenario: str, release_id: str) -> Path:
        return self.directory(scenario) / quote(release_id, safe="@").replace(".", "%2E")

    def positions(self) -> dict[str, int]:
        """Per "<topic>-<partition>", the furthest position that any scenario reached."""
        out: dict[str, int] = {}
        for state in self._states.values():
            for name, offset in state.positions.items():
                out[name] = max(out.get(name, 0), offset)
        return out

    def pending(self) -> Iterable[PolicyRelease]:
        return [s.pending for s in self._states.values() if s.pending is not None]
