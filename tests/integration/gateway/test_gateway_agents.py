"""Real agents, unchanged, through the gateway: a question that needs a tool, then a correction of the answer.

Skipped where the agents are not installed; tests/integration/gateway/install_agents.sh installs them. With
CLAWBACK_TRANSCRIPTS=docs/agents each run leaves its transcript there.
"""

from __future__ import annotations

import json
import os
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from libs.contracts import TrafficRaw
from libs.dialects import parse_request, parse_response
from libs.dialects.hints import session_hint
from libs.matching.matcher import Matcher
from libs.matching.memory import MemoryStore
from tests.integration.gateway import agents, scripted
from tests.integration.gateway.harness import Upstream, gateway

pytestmark = pytest.mark.integration


@pytest.mark.timeout(300)
@pytest.mark.parametrize("agent", agents.AGENTS, ids=lambda a: a.name)
async def test_agent_works_unchanged(agent: agents.Agent, tmp_path: Path) -> None:
    where = agents.directory()
    if where is None or not (where / agent.binary).exists():
        pytest.skip(f"{agent.name} is not installed: run install_agents.sh and set CLAWBACK_AGENTS_DIR")
    home, project = tmp_path / "home", tmp_path / "project"
    home.mkdir()
    project.mkdir()
    (project / "notes.txt").write_text("deploy on Friday, code word heron\n")
    spool = tmp_path / "spool"
    async with (
        Upstream(scripted.answer).running() as upstream,
        gateway(upstream.url, spool, gateway_capture="none", gateway_upstream_api_key="upstream-own-key") as served,
    ):
        documented, words = agent.configured(home, served.url)
        env = {"HOME": str(home), **documented}
        command = [str(where / agent.binary), *words]
        first = await agents.run([*command, *agent.ask], env, project)
        second = await agents.run([*command, *agent.correct], env, project)
        records = await served.records()
    assert "heron" in first, first[-2000:]
    assert "Short: deploy on Friday." in second, second[-2000:]
    assert {r.outcome for r in records} == {"completed"}
    turns = [r for r in records if r.path == agent.path and _main(r)]
    _conversation(turns)
    chain = {(a.exchange_id, b.exchange_id) for a, b in pairwise(turns)}
    assert await _bound(records) == chain
    assert await _bound([_without_ids(r) for r in records]) == chain
    if agent.hint:
        assert len({r.headers[agent.hint] for r in turns}) == 1
    for seen in upstream.seen:
        assert agents.KEY not in json.dumps(seen.headers)
    for segment in spool.glob("*.seg"):
        assert agents.KEY.encode() not in segment.read_bytes()
    if target := os.environ.get("CLAWBACK_TRANSCRIPTS"):
        _write_transcript(Path(target) / f"{agent.name}.md", agent, records, str(tmp_path))


def _main(record: TrafficRaw) -> bool:
    """Not one of the agent's own side calls (titles, suggestions)."""
    request = parse_request(record)
    last = [m for m in request.messages if m.role != "system"][-1]
    return request.has_tools and (last.role == "tool" or agents.FIRST in last.text or agents.SECOND in last.text)


def _conversation(turns: list[TrafficRaw]) -> None:
    """A tool call, its result answered, the correction answered: each request repeats the reply before it."""
    replies = [parse_response(r).reply for r in turns]
    assert [bool(r and r.tool_calls) for r in replies] == [True, False, False]
    assert replies[0] and scripted.COMMAND in replies[0].tool_calls[0].arguments
    follow_up = parse_request(turns[1]).messages
    assert any(m.role == "tool" and "heron" in m.text for m in follow_up)
    assert any(m.tool_calls and m.tool_calls[0].name == replies[0].tool_calls[0].name for m in follow_up)
    last = parse_request(turns[2]).messages
    assert replies[1] and any(m.role == "assistant" and m.text.strip() == replies[1].text.strip() for m in last)
    assert any(m.role == "user" and agents.SECOND in m.text for m in last)


async def _bound(records: list[TrafficRaw]) -> set[tuple[str, str]]:
    """What the matcher makes of the traffic: (turn, answer), side calls of the agent included in what it is shown."""
    matcher = Matcher(MemoryStore())
    found = [b for r in records for b in (await matcher.match(r)).bindings]
    return {(b.turn_id, b.answered_by) for b in found}


def _without_ids(record: TrafficRaw) -> TrafficRaw:
    """The record of a client that names no conversation: no header, no metadata, no cache key."""
    request = {
        k: v for k, v in record.request.items() if k not in ("metadata", "prompt_cache_key", "user", "session_id")
    }
    return structs.replace(record, headers={}, request=request)


def _write_transcript(path: Path, agent: agents.Agent, records: list[TrafficRaw], secret_path: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    version = records[0].headers.get("user-agent", "")
    lines = [f"# {agent.name}: what passed the gateway", "", f"user-agent: `{version}`", ""]
    for number, record in enumerate(records, 1):
        hint = session_hint(record.headers, record.request)
        lines += [f"## exchange {number}: {record.path}, {record.outcome}", ""]
        lines += [f"session hint: `{hint[0]}`" if hint else "session hint: none", ""]
        request = parse_request(record)
        lines += [f"{len(request.messages)} messages, {len(request.tool_names)} tools; the last messages:", ""]
        lines += [f"- {m.role}: {_short(_said(m))}" for m in request.messages[-3:]]
        reply = parse_response(record).reply
        lines += ["", f"reply: {_short(_said(reply)) if reply else 'none'}", ""]
    text = "\n".join(lines).replace(secret_path, "~")
    # What differs from run to run.
    text = re.sub(r"Chunk ID: [0-9a-f]+", "Chunk ID: <id>", text)
    text = re.sub(r"Process Group PGID: [0-9]+", "Process Group PGID: <pid>", text)
    text = re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}", "<id>", re.sub(r"/tmp/[^\s`]*", "<dir>", text))
    path.write_text(text, encoding="utf-8")


def _said(message: Any) -> str:
    calls = " ".join(f"calls {c.name}({c.arguments})" for c in message.tool_calls)
    return f"{message.text} {calls}".strip()


def _short(text: str) -> str:
    flat = " ".join(text.split())
    if len(flat) > 160:
        flat = f"{flat[:60]} ... {flat[-90:]}"  # agents put reminders before a person's words
    return f"`{flat}`" if flat else "(empty)"
