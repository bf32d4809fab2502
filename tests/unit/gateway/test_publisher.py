"""Spool to broker: in order, nothing skipped, nothing acknowledged is sent again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiokafka.errors import KafkaConnectionError, KafkaTimeoutError, MessageSizeTooLargeError

from libs.contracts import claims
from services.gateway import publisher as module
from services.gateway.publisher import Publisher
from services.gateway.spool import Spool


class Broker:
    """A producer that fails as told: `fails(value, attempt)` gives the error for that try, or None."""

    def __init__(self, fails: Callable[[bytes, int], Exception | None] = lambda value, attempt: None) -> None:
        self.fails, self.stored, self.tries = fails, list[bytes](), dict[bytes, int]()
        self.changed = asyncio.Event()
        self.starts = 0
        self.unreachable = 0

    async def start(self) -> None:
        self.starts += 1
        if self.starts <= self.unreachable:
            raise KafkaConnectionError("away")

    async def stop(self) -> None: ...

    async def send(self, topic: str, value: bytes, key: bytes | None) -> asyncio.Future[Any]:
        self.tries[value] = self.tries.get(value, 0) + 1
        self.changed.set()
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        error = self.fails(value, self.tries[value])
        if error:
            future.set_exception(error)
        else:
            self.stored.append(value)
            future.set_result(None)
        return future

    async def until(self, reached: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not reached():
                self.changed.clear()
                await self.changed.wait()


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BACKOFF_SECONDS", (0.0,))


def spool_with(directory: Path, *records: bytes) -> Spool:
    spool = Spool(directory, max_bytes=10**7, segment_bytes=10**6)
    for record in records:
        spool.append(b"k", record)
    return spool


async def run_until_empty(publisher: Publisher) -> None:
    task = asyncio.create_task(publisher.run())
    assert await publisher.drained(20.0)
    task.cancel()


async def test_sends_in_order_and_empties_the_spool(tmp_path: Path) -> None:
    broker, spool = Broker(), spool_with(tmp_path, b"1", b"2", b"3")
    await run_until_empty(Publisher(spool, lambda: broker))
    assert broker.stored == [b"1", b"2", b"3"]
    assert spool.size == 0


async def test_a_broker_that_is_away_is_tried_again(tmp_path: Path) -> None:
    broker = Broker()
    broker.unreachable = 3
    await run_until_empty(Publisher(spool_with(tmp_path, b"1"), lambda: broker))
    assert broker.stored == [b"1"]


async def test_what_was_acknowledged_is_not_sent_again(tmp_path: Path) -> None:
    broker = Broker(lambda value, attempt: KafkaTimeoutError() if value == b"2" and attempt <= 2 else None)
    spool = spool_with(tmp_path, b"1", b"2", b"3")
    await run_until_empty(Publisher(spool, lambda: broker))
    assert sorted(broker.stored) == [b"1", b"2", b"3"]
    assert spool.records == 0


async def test_the_head_never_passes_a_record_that_failed(tmp_path: Path) -> None:
    broker = Broker(lambda value, attempt: KafkaTimeoutError() if value == b"2" else None)
    spool = spool_with(tmp_path, b"1", b"2", b"3")
    publisher = Publisher(spool, lambda: broker)
    task = asyncio.create_task(publisher.run())
    await broker.until(lambda: broker.tries.get(b"2", 0) >= 3)
    task.cancel()
    assert [f.value for f in spool.read(spool.head, max_records=9, max_bytes=99)] == [b"2", b"3"]
    assert broker.stored.count(b"3") == 1


async def test_a_record_that_the_topic_refuses_is_dropped_and_counted(tmp_path: Path) -> None:
    before = module.metrics.GATEWAY_DROPPED.labels("over_topic_limit")._value.get()
    broker = Broker(lambda value, attempt: MessageSizeTooLargeError() if value == b"big" else None)
    spool = spool_with(tmp_path, b"big", b"small")
    await run_until_empty(Publisher(spool, lambda: broker))
    assert broker.stored == [b"small"]
    assert module.metrics.GATEWAY_DROPPED.labels("over_topic_limit")._value.get() == before + 1


async def test_a_large_record_goes_by_claim_check(tmp_path: Path) -> None:
    broker, large = Broker(), b'{"large":"' + b"x" * 500 + b'"}'
    url = (tmp_path / "claims").as_uri()
    spool = spool_with(tmp_path / "spool", large, b"small")
    await run_until_empty(Publisher(spool, lambda: broker, max_value_bytes=100, claims_url=url))
    ticket, small = broker.stored
    assert small == b"small"
    assert claims.is_ticket(ticket) and len(ticket) < 300
    assert claims.redeem(ticket, url) == large


async def test_a_claim_store_that_is_away_holds_the_record_not_the_others(tmp_path: Path) -> None:
    broker, large = Broker(), b"x" * 500
    (tmp_path / "file").write_text("not a directory")
    spool = spool_with(tmp_path / "spool", large, b"small")
    publisher = Publisher(spool, lambda: broker, max_value_bytes=100, claims_url=(tmp_path / "file").as_uri())
    task = asyncio.create_task(publisher.run())
    await broker.until(lambda: b"small" in broker.stored)
    assert spool.records == 2
    (tmp_path / "file").unlink()
    assert await publisher.drained(20.0)
    task.cancel()
    assert len(broker.stored) == 2 and spool.records == 0


async def test_a_record_appended_later_wakes_the_publisher(tmp_path: Path) -> None:
    broker, spool = Broker(), spool_with(tmp_path, b"1")
    publisher = Publisher(spool, lambda: broker)
    task = asyncio.create_task(publisher.run())
    assert await publisher.drained(20.0)
    spool.append(b"k", b"2")
    publisher.wake()
    assert await publisher.drained(20.0)
    task.cancel()
    assert broker.stored == [b"1", b"2"]


async def test_a_client_that_never_answers_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SEND_SECONDS", 0.01)

    class Silent(Broker):
        async def send(self, topic: str, value: bytes, key: bytes | None) -> asyncio.Future[Any]:
            return asyncio.get_running_loop().create_future()

    brokers: list[Broker] = [Silent(), Broker()]
    made: list[Broker] = []

    def make() -> Broker:
        made.append(brokers[len(made)])
        return made[-1]

    await run_until_empty(Publisher(spool_with(tmp_path, b"1"), make))
    assert made == brokers and brokers[1].stored == [b"1"]


async def test_a_client_that_keeps_failing_is_replaced(tmp_path: Path) -> None:
    lost, found = Broker(lambda value, attempt: KafkaTimeoutError()), Broker()
    made: list[Broker] = []

    def make() -> Broker:
        made.append(found if made else lost)
        return made[-1]

    await run_until_empty(Publisher(spool_with(tmp_path, b"1"), make))
    assert found.stored == [b"1"] and lost.tries[b"1"] == module._FRESH_AFTER
