"""Read topics as decoded records, filtered: for the command line, the monitor and tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection
from dataclasses import dataclass
from typing import Literal

from libs.contracts import TOPICS, Record, claims, decode
from libs.errors import ConfigError, ContractError, RetryError
from libs.streams.config import ServiceSettings
from libs.streams.follow import read
from libs.streams.types import StreamRecord


@dataclass(frozen=True, slots=True)
class Tapped:
    """One record with where it lay. `record` is None when it could not be decoded; `error` then says why."""

    source: StreamRecord
    record: Record | None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Filter:
    """Keeps a record when every given field fits. `turn` fits exchange ids too, and batches and releases that hold it.

    Records that cannot be decoded pass only when nothing is filtered for.
    """

    scenario: str | None = None
    session: str | None = None
    turn: str | None = None

    def keeps(self, record: Record | None) -> bool:
        if record is None:
            return self.scenario is None and self.session is None and self.turn is None
        return (
            (self.scenario is None or getattr(record, "scenario", None) == self.scenario)
            and (self.session is None or self.session in sessions_of(record))
            and (self.turn is None or self.turn in turns_of(record))
        )


def sessions_of(record: Record) -> set[str]:
    """The sessions that a record names."""
    own = getattr(record, "session_id", None)
    return {s.session_id for s in getattr(record, "samples", ())} | ({own} if own else set())


def turns_of(record: Record) -> set[str]:
    """The turn and exchange ids that a record names."""
    names = ("turn_id", "exchange_id", "answered_by")
    return {s.turn_id for s in getattr(record, "samples", ())} | {
        value for name in names if (value := getattr(record, name, None))
    }


def kind_of(topic: str) -> type[Record]:
    """The record type of a topic; a replay's topic (`<name>.<suffix>`) has the original's. Raises ConfigError."""
    for name, kind in TOPICS.items():
        if topic == name or topic.startswith(f"{name}."):
            return kind
    raise ConfigError(f"no such topic: {topic}; there are {', '.join(TOPICS)}")


def decoded(source: StreamRecord, claims_url: str = "") -> Tapped:
    """Decode by topic; a record that is not of its topic's form comes back with the error."""
    try:
        value = claims.redeem(source.value, claims_url) if claims.is_ticket(source.value) else source.value
        return Tapped(source, decode(value, kind_of(source.topic)))
    except (ContractError, RetryError) as error:
        return Tapped(source, None, str(error))


async def tap(
    settings: ServiceSettings,
    topics: Collection[str],
    *,
    start: Literal["beginning", "end"] = "beginning",
    follow: bool = False,
    where: Filter | Callable[[Record], bool] | None = None,
) -> AsyncIterator[Tapped]:
    """Decoded records, in offset order per partition. Ends at what was there at the call unless `follow`.

    Raises ConfigError (unknown topic) and RetryError (the broker is away).
    """
    for topic in topics:
        kind_of(topic)
    async for source in read(settings, topics, start=start, follow=follow):
        if source is None:
            continue
        tapped = decoded(source, settings.claims_url)
        if isinstance(where, Filter):
            kept = where.keeps(tapped.record)
        else:
            kept = where is None or (tapped.record is not None and where(tapped.record))
        if kept:
            yield tapped
