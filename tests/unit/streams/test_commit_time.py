"""A broker that is away keeps nobody from stopping."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from libs.errors import RetryError
from libs.streams import consumer as consumer_module
from libs.streams.config import ServiceSettings
from libs.streams.consumer import KafkaConsumer
from tests.unit.streams.test_loop import TOPIC


class Away:
    """As AIOKafkaConsumer while no coordinator answers: commit tries again for ever."""

    async def commit(self, _offsets: Any) -> None:
        await asyncio.Event().wait()


async def test_a_commit_that_gets_no_answer_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer_module, "REQUEST_TIMEOUT_MS", 50)
    consumer = KafkaConsumer(ServiceSettings(), [TOPIC], "g")
    client: Any = Away()
    consumer._client = client
    with pytest.raises(RetryError, match="commit"):
        await asyncio.wait_for(consumer.commit({(TOPIC, 0): 1}), 2)
