"""The gateway writes traffic.raw as the stored examples have it: an example's exchange, replayed, gives its record."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from libs.contracts import TrafficRaw, encode
from tests.integration.gateway.harness import Upstream, gateway

EXAMPLES = sorted((Path(__file__).parents[2] / "libs/contracts/examples/traffic.raw/v1").glob("*.json"))
STORED: dict[str, Any] = {p.stem: json.loads(p.read_text()) for p in EXAMPLES}
COMPLETED = [name for name, example in STORED.items() if example["outcome"] == "completed"]


@pytest.mark.integration
@pytest.mark.parametrize("name", COMPLETED)
async def test_a_replayed_exchange_gives_the_examples_record(name: str, tmp_path: Path) -> None:
    example = STORED[name]
    beside = {"clawback": {"release_id": example["release_id"], "capture": example.get("capture")}}

    async def answer(_request: web.Request, _body: bytes) -> web.StreamResponse:
        return web.json_response({**example["response"], **beside})

    async with Upstream(answer).running() as up, gateway(up.url, tmp_path, gateway_redaction=False) as served:
        async with (
            aiohttp.ClientSession(skip_auto_headers=["User-Agent"]) as session,
            session.post(
                served.url + example["path"],
                json=example["request"],
                headers={**example["headers"], "x-reef-scenario": example["scenario"]},
            ) as response,
        ):
            assert await response.json() == example["response"]
        record: TrafficRaw = await served.record()
    ours = json.loads(encode(record))
    assert set(ours) >= set(example)
    same = ("version", "scenario", "path", "request", "response", "outcome", "release_id", "capture")
    assert {k: ours[k] for k in same} == {k: example.get(k) for k in same}
    assert example["headers"].items() <= ours["headers"].items()
    assert {k: type(ours[k]) for k in example} == {k: type(v) for k, v in example.items()}
