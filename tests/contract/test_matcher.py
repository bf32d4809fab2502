"""The matcher reads every stored traffic.raw example, and what it writes reads back as its topics' records."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from libs.contracts import TOPICS, ExchangeClassified, TrafficRaw, TurnMatched, decode, encode
from libs.matching.matcher import Matcher
from libs.matching.memory import MemoryStore
from libs.streams.types import StreamRecord
from services.matcher.handler import MatchHandler
from tests.unit.matching.talk import CRON, PLAN, SHORT, World, said, user

EXAMPLES = sorted((Path(__file__).parents[2] / "libs/contracts/examples/traffic.raw/v1").glob("*.json"))
STORED = {path: json.loads(path.read_text(encoding="utf-8")) for path in EXAMPLES}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
async def test_examples_are_read_and_what_comes_out_fits_the_contract(path: Path) -> None:
    raw = json.dumps(STORED[path]).encode()
    done = await MatchHandler(Matcher(MemoryStore())).handle(StreamRecord("traffic.raw", 0, 0, None, raw))
    for output in done.outputs:
        record = decode(output.value, TOPICS[output.topic])
        assert encode(record) == output.value
    lines = [decode(o.value, ExchangeClassified) for o in done.outputs if o.topic == "exchanges.classified"]
    assert [line.exchange_id for line in lines] == [decode(raw, TrafficRaw).exchange_id]


@pytest.mark.parametrize("evidence", ["next_state", "regeneration", "branch"])
async def test_every_evidence_is_a_record_of_the_topic(evidence: str) -> None:
    w = World()
    ask, no = user("List what is in this folder."), user("No lists, please.")
    named = {"x-session-id": "s"}
    w.exchange([ask], PLAN, headers=named, match=False)
    w.exchange([ask, said(PLAN), no], SHORT, headers=named, match=False)
    last = user("No numbers.") if evidence == "branch" else no
    if evidence != "next_state":
        w.exchange([ask, said(PLAN), last], CRON, headers=named, match=False)
    handler = MatchHandler(Matcher(MemoryStore()))
    values = [
        o.value
        for n, r in enumerate(w.records)
        for o in (await handler.handle(StreamRecord("traffic.raw", 0, n, None, encode(r)))).outputs
        if o.topic == "turns.matched"
    ]
    found = [decode(v, TurnMatched) for v in values]
    assert evidence in {f.evidence for f in found}
    assert all(f.request and f.response for f in found)
