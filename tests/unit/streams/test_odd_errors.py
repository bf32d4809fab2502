"""An error's text may quote what no record can hold; the record is set aside all the same."""

from __future__ import annotations

import pytest

from libs.contracts import DeadLetter, decode
from libs.errors import DeadLetterError
from libs.streams.memory import MemoryBroker
from libs.streams.types import Done, StreamRecord
from tests.eventually import eventually
from tests.unit.streams.test_loop import Handling, fill, loop_on, running


@pytest.mark.parametrize("error", [ValueError("no emoji: \ud83d"), DeadLetterError("cut: \udc80", reason="cut")])
async def test_an_error_with_half_a_character_is_dead_lettered(error: Exception) -> None:
    broker = MemoryBroker()
    fill(broker, 1)

    async def fail(_record: StreamRecord) -> Done:
        raise error

    async with running(loop_on(broker, Handling(fail))):
        await eventually(lambda: broker.records("dead.letters"), within_seconds=5)
        await eventually(lambda: sum(broker.committed("g").values()) == 1, within_seconds=5)
    (letter,) = (decode(r.value, DeadLetter) for r in broker.records("dead.letters"))
    assert letter.error.rpartition(": ")[2] == "\ufffd"
