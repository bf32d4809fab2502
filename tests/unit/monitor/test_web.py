"""The monitor's HTTP: people type /inspector, the page lies at /."""

from __future__ import annotations

import pytest
from aiohttp.test_utils import TestClient, TestServer

from services.monitor.config import MonitorSettings
from services.monitor.conversations import Conversations
from services.monitor.handler import Recorder
from services.monitor.web import Web


@pytest.mark.parametrize(("asked", "lands"), [("/inspector", "/"), ("/inspector?reason=expired", "/?reason=expired")])
async def test_inspector_leads_to_the_page(asked: str, lands: str) -> None:
    recorder = Recorder(Conversations(1024), max_exchanges=1000, live_since=0.0)
    web = Web(MonitorSettings(), recorder, ready=lambda: True)  # type: ignore[call-arg]
    async with TestClient(TestServer(web.application())) as client:
        answer = await client.get(asked)
        assert (answer.status, str(answer.url.relative())) == (200, lands)
        assert "<title>" in await answer.text()
