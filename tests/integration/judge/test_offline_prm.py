"""The offline forms with the PRM over real HTTP: votes recorded, then replayed with nobody there."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from libs.contracts import encode
from libs.feedback.offline import main
from tests.integration.judge.prm_server import serve
from tests.integration.judge.service import turn

pytestmark = pytest.mark.integration


async def test_recorded_votes_are_replayed_without_a_call(tmp_path: Path) -> None:
    source, votes = tmp_path / "matched.jsonl", tmp_path / "votes.jsonl"
    source.write_bytes(b"\n".join(encode(turn(n)) for n in range(5)) + b"\n")

    def argv(url: str, output: str, *more: str) -> list[str]:
        common = ["judge", "--judge", "prm", "--url", url, "--model", "prm", "--call-timeout", "5"]
        return [*common, "--input", str(source), "--output", str(tmp_path / output), *more]

    async with serve() as server:
        url = server.url
        assert await asyncio.to_thread(main, argv(url, "one.jsonl", "--record", str(votes))) == 0
        assert server.calls == 10
    assert len(votes.read_text().splitlines()) == 5
    assert await asyncio.to_thread(main, argv(url, "two.jsonl", "--replay", str(votes))) == 0
    assert (tmp_path / "one.jsonl").read_bytes() == (tmp_path / "two.jsonl").read_bytes()


async def test_turns_that_could_not_be_judged_are_reported_and_not_written(tmp_path: Path) -> None:
    source, told = tmp_path / "matched.jsonl", tmp_path / "report.json"
    source.write_bytes(encode(turn(1)) + b"\n")
    async with serve() as gone:
        url = gone.url
    argv = ["judge", "--judge", "prm", "--url", url, "--model", "prm", "--input", str(source)]
    argv += ["--output", str(tmp_path / "out.jsonl"), "--report", str(told)]
    assert await asyncio.to_thread(main, argv) == 1
    report = json.loads(told.read_text())
    assert report["abstentions"] == {"connection": 2}
    assert report["failed"][0]["turn_id"] == "turn-1"
    assert (tmp_path / "out.jsonl").read_bytes() == b""
