"""What a tombstone covers, and that a stage neither sees it nor passes it on."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec
import pytest

from libs.contracts import Record, Tombstone, encode
from libs.errors import RetryError
from libs.streams import forgotten as module
from libs.streams.config import ServiceSettings
from libs.streams.forgotten import Forgotten, LeavesOut, Subject
from libs.streams.types import Done, Handler, Held, Output, Partition, StreamRecord
from tests.monitor_records import Talk

T0 = 1_700_000_000.0
ANN = Talk("s", ["Explain tides.", "No lists.", "Thanks."], T0, tenant="ann")
ENDS = T0 + 3600


def stones(*given: Tombstone) -> Forgotten:
    found = Forgotten()
    for stone in given:
        found.add(stone)
    return found


@pytest.mark.parametrize(
    ("stone", "subject", "covered"),
    [
        (Tombstone(kind="tenant", value="ann", at=10.0), Subject(tenant="ann", received_at=10.0), True),
        (Tombstone(kind="tenant", value="ann", at=10.0), Subject(tenant="ann", at=9.0), True),
        (Tombstone(kind="tenant", value="ann", at=10.0), Subject(tenant="ann", received_at=10.1), False),
        (Tombstone(kind="tenant", value="ann", at=10.0), Subject(tenant="bob", received_at=1.0), False),
        (Tombstone(kind="session", value="s", tenant="ann", at=10.0), Subject("ann", "s", received_at=1.0), True),
        (Tombstone(kind="session", value="s", tenant="ann", at=10.0), Subject("ann", "s", received_at=11.0), False),
        (Tombstone(kind="session", value="s", tenant="ann", at=10.0), Subject("bob", "s", received_at=1.0), False),
        (Tombstone(kind="session", value="s", tenant="ann", at=10.0), Subject("ann", "t", received_at=1.0), False),
        (Tombstone(kind="session", value="s", at=10.0), Subject("bob", "s", received_at=1.0), True),
        (Tombstone(kind="session", value="s", tenant="ann", at=10.0), Subject("", "s", received_at=1.0), True),
        (
            Tombstone(kind="session", value="s", tenant="ann", at=10.0, exchange_ids=["x"]),
            Subject("ann", exchange_id="x", received_at=1.0),
            True,
        ),
        (
            Tombstone(kind="session", value="s", tenant="ann", at=10.0, exchange_ids=["x"]),
            Subject("bob", exchange_id="x", received_at=1.0),
            False,
        ),
    ],
)
def test_what_a_tombstone_covers(stone: Tombstone, subject: Subject, covered: bool) -> None:
    assert stones(stone).covers(subject) is covered
    assert stones(stone, stone).covers(subject) is covered
    assert not Forgotten().covers(subject)


def test_an_older_tombstone_does_not_shorten_a_newer_one() -> None:
    both = stones(Tombstone(kind="tenant", value="ann", at=10.0), Tombstone(kind="tenant", value="ann", at=5.0))
    assert both.covers(Subject(tenant="ann", received_at=9.0))


@pytest.mark.parametrize(
    ("topic", "record"),
    [
        ("traffic.raw", ANN.raw(0)),
        ("exchanges.classified", ANN.classified(1)),
        ("turns.matched", ANN.matched(1)),
        ("turns.judged", ANN.judged(1, -1)),
    ],
)
def test_every_personal_topic_says_whose_its_records_are(topic: str, record: Record) -> None:
    assert stones(Tombstone(kind="tenant", value="ann", at=ENDS)).covers_value(topic, encode(record))
    assert not stones(Tombstone(kind="tenant", value="bob", at=ENDS)).covers_value(topic, encode(record))
    assert not stones(Tombstone(kind="tenant", value="ann", at=T0 - 1)).covers_value(topic, encode(record))


def test_what_is_no_record_is_left_to_the_handler() -> None:
    stone = Tombstone(kind="tenant", value="", at=ENDS)
    for value in (b"", b"[", b"\xff", b'{"tenant": 1}', b"[" * 100_000):
        assert not stones(stone).covers_value("traffic.raw", value)
    assert not stones(stone).covers_value("policy.releases", b"{}")


class Copies(Handler):
    """Hands on what it is given, and notes it."""

    def __init__(self, *outputs: Output) -> None:
        self.seen: list[StreamRecord] = []
        self._outputs = outputs

    async def handle(self, record: StreamRecord) -> Done | Held:
        self.seen.append(record)
        return Done(outputs=self._outputs)

    async def tick(self) -> Done | Sequence[Done] | None:
        return None

    async def revoked(self, partitions: Collection[Partition]) -> None:
        return None


def raw(talk: Talk = ANN, suffix: str = "") -> StreamRecord:
    return StreamRecord(f"traffic.raw{suffix}", 0, 0, None, encode(talk.raw(0)))


def leaves_out(handler: Handler, *given: Tombstone, suffix: str = "") -> LeavesOut:
    filtered = LeavesOut(handler, ServiceSettings(stream_input_suffix=suffix))
    for stone in given:
        filtered.forgotten.add(stone)
    filtered._follower.caught_up.set()
    return filtered


async def test_the_handler_never_sees_a_forgotten_record_and_the_count_says_so() -> None:
    handler = Copies()
    filtered = leaves_out(handler, Tombstone(kind="tenant", value="ann", at=ENDS), suffix=".again")
    assert await filtered.handle(raw(suffix=".again")) == Done(outcome="forgotten")
    assert handler.seen == []
    other = Talk("s", ["a"], T0, tenant="bob")
    assert await filtered.handle(raw(other, ".again")) == Done()
    assert len(handler.seen) == 1


async def test_what_only_turns_out_to_be_forgotten_does_not_go_on() -> None:
    """Raw traffic names no session; its matches do."""
    session = ANN.matched(1).session_id
    mine = Output("turns.matched", "k", encode(ANN.matched(1)))
    later = Output("turns.matched", "k", encode(msgspec.structs.replace(ANN.matched(1), received_at=ENDS + 1)))
    stone = Tombstone(kind="session", value=session, tenant="ann", at=ENDS)
    assert await leaves_out(Copies(mine, later), stone).handle(raw()) == Done(outputs=(later,))
    assert await leaves_out(Copies(mine), stone).handle(raw()) == Done(outcome="forgotten")
    assert await leaves_out(Copies(mine)).handle(raw()) == Done(outputs=(mine,)), "no tombstone, nothing is left out"


async def test_nothing_is_handled_before_the_tombstones_have_been_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PATIENCE_SECONDS", 0.01)
    handler = Copies()
    filtered = LeavesOut(handler, ServiceSettings())
    with pytest.raises(RetryError, match="tombstones have not been read"):
        await filtered.handle(raw())
    assert handler.seen == []
