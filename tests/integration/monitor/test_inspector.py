"""The Inspector in a real browser: colours, reasons, verdicts, hints, steps, and the filters."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web

from deploy.local.process import free_port
from libs.contracts import Record, encode
from services.monitor.config import MonitorSettings
from services.monitor.conversations import Conversations
from services.monitor.handler import Recorder
from services.monitor.web import Web
from tests.chromium import BINARY, Page, chromium
from tests.monitor_records import TOPIC_OF, Talk, trained_talk

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(BINARY is None, reason="no Chromium is installed (Debian: chromium)"),
]


def traffic(now: float) -> list[Record]:
    attack = "<img src=x onerror=\"document.title='owned'\"> & <script>document.title='owned'</script>"
    return [
        *trained_talk("learned", now - 60),
        *Talk("lost", ["a", "b"], now - 40, "essays", unmatched={1: "ambiguous"}).records(),
        *Talk("silent", ["a", "b"], now - 30, verdicts={0: 0}).records(),
        *Talk("hostile", [attack], now - 10).records(),
    ]


@pytest.fixture
async def url() -> AsyncIterator[str]:
    recorder = Recorder(Conversations(1 << 20), max_exchanges=1000, live_since=0.0)
    for record in traffic(time.time()):
        recorder.take(TOPIC_OF[type(record)], encode(record), timestamp=time.time())
    runner = web.AppRunner(Web(MonitorSettings(), recorder, ready=lambda: True).application())
    await runner.setup()
    port = free_port()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    yield f"http://127.0.0.1:{port}/"
    await runner.cleanup()


@pytest.fixture
async def page(url: str, tmp_path: Path) -> AsyncIterator[Page]:
    async with chromium(tmp_path / "profile") as found:
        await found.open(url)
        await found.until("document.body?.dataset.loaded === 'yes'")
        yield found


async def sessions(page: Page) -> list[str]:
    found: list[str] = await page.js("[...document.querySelectorAll('section')].map(s => s.dataset.session)")
    return found


async def choose(page: Page, field: str, value: str, until: str) -> None:
    await page.js(
        f"(() => {{ const s = document.getElementById('{field}'); s.value = '{value}';"
        "s.dispatchEvent(new Event('change', {bubbles: true})); })()"
    )
    await page.until(until)


async def test_turns_are_shown_with_state_reason_verdict_hint_and_step(page: Page) -> None:
    assert await sessions(page) == ["hostile", "silent", "lost", "learned"], "newest first"
    shown = {
        turn: await page.js(f"document.querySelector('[data-turn=\"{turn}\"]').innerText")
        for turn in ("learned-0", "lost-1", "silent-0")
    }
    assert "trained" in shown["learned-0"]
    assert "asked: Explain tides." in shown["learned-0"]
    assert "next state: user: No lists, please." in shown["learned-0"]
    assert "verdict: -1 (train, signal)" in shown["learned-0"]
    assert "hint: Write plain prose." in shown["learned-0"]
    assert "step: homework@00001-b-learne (released)" in shown["learned-0"]
    assert "unmatched · ambiguous" in shown["lost-1"]
    assert "verdict: 0 (dropped, no_signal)" in shown["silent-0"]
    assert await page.js("document.getElementById('rates').innerText") == (
        "match rate 75.0% · signal rate 25.0% · 8 turns in the last hour"
    )


async def test_states_are_coloured_apart(page: Page) -> None:
    colours = {
        turn: await page.js(f"getComputedStyle(document.querySelector('[data-turn=\"{turn}\"]')).borderLeftColor")
        for turn in ("learned-0", "lost-1", "silent-0", "hostile-0")
    }
    assert len(set(colours.values())) == 4, colours
    assert colours["learned-0"] == "rgb(27, 127, 59)"
    assert colours["lost-1"] == "rgb(198, 40, 40)"


async def test_filters_by_scenario_and_reason(page: Page) -> None:
    await choose(page, "scenario", "essays", "document.querySelectorAll('section').length === 1")
    assert await sessions(page) == ["lost"]
    await choose(page, "scenario", "", "document.querySelectorAll('section').length === 4")
    await choose(page, "reason", "trained", "document.querySelectorAll('section').length === 1")
    assert await sessions(page) == ["learned"]
    await choose(page, "reason", "ambiguous", "document.querySelector('section').dataset.session === 'lost'")
    await choose(page, "reason", "expired", "document.querySelectorAll('section').length === 0")
    assert "No conversation fits." in await page.js("document.getElementById('list').innerText")


async def test_a_conversation_cannot_run_code_in_the_page(page: Page) -> None:
    text = await page.js("document.querySelector('[data-turn=\"hostile-0\"]').innerText")
    assert "<script>" in text, "shown as text"
    assert await page.js("document.title") == "Clawback Inspector"
    assert await page.js("document.querySelectorAll('main img, main script').length") == 0
    assert page.errors == []
