"""policy.releases: the event log of each scenario's release chain.

Key: scenario. Producer: trainer (and the CLI for rollback and promote). Consumers: policy, trainer, batcher, monitor.
Every batch ends in exactly one event that names it: released, held, skipped or failed.
"""

from __future__ import annotations

import re
from typing import Literal

import msgspec

from libs.contracts.base import Record

TOPIC = "policy.releases"
VERSION = 1

BASE_RELEASE = "base"  # the model before any step

_NUMBER = re.compile(r"@([0-9]{1,18})(?:-[^@]*)?$")  # engines choose ids of their own: other digits, or too many

Event = Literal["released", "held", "skipped", "failed", "rolled_back", "promoted"]


class Adapter(msgspec.Struct, frozen=True, kw_only=True):
    """Where the weights lie. `uri` is a directory (fsspec URL or path) with safetensors files."""

    kind: Literal["lora", "full"]
    uri: str
    digest: str  # sha256 of the weight file, checked before it serves


class PolicyRelease(Record, frozen=True, kw_only=True):
    """`serving` is the release that serves after this event: a held or skipped one leaves the former in place."""

    version: int = VERSION
    event: Event
    release_id: str  # of the release this event is about; for skipped and failed: the unchanged serving one
    parent_id: str | None
    serving: str
    scenario: str
    step: int  # optimizer steps so far in this scenario
    number: int  # candidates so far in this scenario, held ones too
    batch_id: str | None
    trained: list[str]  # feedback ids that reached the step
    dropped: dict[str, str]  # feedback id -> reason (stale, repeated, too_long, ...)
    reason: str = ""
    weights: Adapter | None = None
    metrics: dict[str, float]
    created_at: float


def release_id_for(scenario: str, number: int, batch_id: str) -> str:
    """The id of a scenario's `number`-th release: the same batch gives the same id after a restart."""
    return f"{scenario}@{number:05d}-{batch_id[:8]}"


def release_number(release_id: str) -> int:
    """How many releases lie before and at this one: 0 for the base model and for ids from other engines."""
    found = _NUMBER.search(release_id)
    return int(found[1]) if found else 0
