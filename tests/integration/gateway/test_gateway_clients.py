"""Client libraries, unchanged: a conversation with a tool call, streamed and not, and the errors that they expect.

openai and anthropic run here; LiteLLM and LangChain run in the environments that install_agents.sh makes.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from libs.dialects import parse_request, parse_response
from tests.integration.gateway import agents, scripted
from tests.integration.gateway.harness import Running, Upstream, gateway

pytestmark = pytest.mark.integration

ASK, SHORTER = "What does notes.txt say?", "No, shorter please."
RESULT = "deploy on Friday, code word heron"
TOOL = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}


@pytest.fixture(params=[False, True], ids=["plain", "streamed"])
def stream(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


async def conversation_is_recorded(served: Running) -> None:
    """Tool call, tool result answered, correction answered."""
    turns = await served.records()
    replies = [parse_response(r).reply for r in turns]
    assert [bool(r and r.tool_calls) for r in replies] == [True, False, False]
    assert replies[1] is not None and RESULT in replies[1].text
    assert replies[2] is not None and replies[2].text == "Short: deploy on Friday."
    assert any(m.role == "tool" and RESULT in m.text for m in parse_request(turns[1]).messages)
    assert any(m.role == "assistant" and RESULT in m.text for m in parse_request(turns[2]).messages)
    assert {r.outcome for r in turns} == {"completed"}


async def test_openai_chat(stream: bool, tmp_path: Path) -> None:
    tools: Any = [{"type": "function", "function": {"name": "bash", "parameters": TOOL}}]
    async with Upstream(scripted.answer).running() as up, gateway(up.url, tmp_path, gateway_capture="none") as served:
        client = openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="sk-a")
        messages: list[Any] = [{"role": "user", "content": ASK}]
        for follow in ([], [{"role": "user", "content": SHORTER}], []):
            if stream:
                async with client.chat.completions.stream(model="m", messages=messages, tools=tools) as events:
                    completion = await events.get_final_completion()
            else:
                completion = await client.chat.completions.create(model="m", messages=messages, tools=tools)
            message = completion.choices[0].message
            messages.append(message.model_dump(exclude_none=True, exclude={"parsed"}))
            calls = message.tool_calls or ()
            messages += [{"role": "tool", "tool_call_id": call.id, "content": RESULT} for call in calls]
            messages += follow
        await conversation_is_recorded(served)


async def test_openai_responses(stream: bool, tmp_path: Path) -> None:
    tools: Any = [{"type": "function", "name": "bash", "parameters": TOOL, "strict": False}]
    async with Upstream(scripted.answer).running() as up, gateway(up.url, tmp_path, gateway_capture="none") as served:
        client = openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="sk-a")
        items: list[Any] = [{"role": "user", "content": ASK}]
        for follow in ([], [{"role": "user", "content": SHORTER}], []):
            if stream:
                done: Any = None
                async for event in await client.responses.create(model="m", input=items, tools=tools, stream=True):
                    done = event.response if event.type == "response.completed" else done
            else:
                done = await client.responses.create(model="m", input=items, tools=tools)
            for item in done.output:
                items.append(item.model_dump(exclude_none=True))
                if item.type == "function_call":
                    items.append({"type": "function_call_output", "call_id": item.call_id, "output": RESULT})
            items += follow
        await conversation_is_recorded(served)


async def test_anthropic_messages(stream: bool, tmp_path: Path) -> None:
    tools: Any = [{"name": "bash", "input_schema": TOOL}]
    async with Upstream(scripted.answer).running() as up, gateway(up.url, tmp_path, gateway_capture="none") as served:
        client = anthropic.AsyncAnthropic(base_url=served.url, api_key="sk-a")
        counted = await client.messages.count_tokens(model="m", messages=[{"role": "user", "content": ASK}])
        assert counted.input_tokens > 0
        messages: list[Any] = [{"role": "user", "content": ASK}]
        for follow in ([], [{"role": "user", "content": SHORTER}], []):
            asked: dict[str, Any] = {"model": "m", "max_tokens": 100, "messages": messages, "tools": tools}
            if stream:
                async with client.messages.stream(**asked) as events:
                    message = await events.get_final_message()
            else:
                message = await client.messages.create(**asked)
            content = [block.model_dump(exclude_none=True) for block in message.content]
            messages.append({"role": "assistant", "content": content})
            results = [
                {"type": "tool_result", "tool_use_id": block.id, "content": RESULT}
                for block in message.content
                if block.type == "tool_use"
            ]
            messages += [{"role": "user", "content": results}] if results else []
            messages += follow
        await conversation_is_recorded(served)


async def test_errors_are_what_the_libraries_expect(tmp_path: Path) -> None:
    async with gateway("http://127.0.0.1:9", tmp_path, gateway_limit_requests_per_minute=0) as served:
        client = openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="sk-a", max_retries=0)
        with pytest.raises(openai.InternalServerError) as away:
            await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}])
        assert away.value.code == "upstream_unreachable"
        with pytest.raises(openai.BadRequestError, match="x-reef-scenario"):
            await client.chat.completions.create(model="m", messages=[], extra_headers={"x-reef-scenario": "a b"})
    async with gateway("http://127.0.0.1:9", tmp_path, gateway_tokens=json.dumps({"0" * 64: "acme"})) as served:
        client = openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="sk-wrong", max_retries=0)
        with pytest.raises(openai.AuthenticationError):
            await client.models.list()
        other = anthropic.AsyncAnthropic(base_url=served.url, api_key="sk-wrong", max_retries=0)
        with pytest.raises(anthropic.AuthenticationError) as refused:
            await other.messages.create(model="m", max_tokens=1, messages=[{"role": "user", "content": "x"}])
        assert "sk-wrong" not in str(refused.value)


async def test_openai_embeddings_and_models_pass(tmp_path: Path) -> None:
    async with Upstream(scripted.answer).running() as up, gateway(up.url, tmp_path) as served:
        client = openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="sk-a", max_retries=0)
        assert [m.id async for m in client.models.list()] == ["scripted"]
        with pytest.raises(openai.NotFoundError, match="no /v1/embeddings here"):
            await client.embeddings.create(model="m", input="x")
        assert await served.records() == []


LITELLM = """
import json, sys, litellm
url, ask, shorter, result, tool = sys.argv[1:6]
tools = [{"type": "function", "function": {"name": "bash", "parameters": json.loads(tool)}}]
messages = [{"role": "user", "content": ask}]
for follow in ([], [{"role": "user", "content": shorter}], []):
    parts = list(litellm.completion(model="openai/m", api_base=url + "/v1", api_key="sk-a", messages=messages,
                                    tools=tools, stream=True))
    message = litellm.stream_chunk_builder(parts, messages=messages).choices[0].message
    messages.append(message.model_dump(exclude_none=True))
    for call in message.tool_calls or ():
        messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    messages += follow
print(messages[-1]["content"])
"""

LANGCHAIN = """
import json, sys
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
url, ask, shorter, result, kind = sys.argv[1:6]
if kind == "openai":
    from langchain_openai import ChatOpenAI
    model = ChatOpenAI(model="m", base_url=url + "/v1", api_key="sk-a")
else:
    from langchain_anthropic import ChatAnthropic
    model = ChatAnthropic(model="m", base_url=url, api_key="sk-a")
@tool
def bash(command: str) -> str:
    "Runs a command."
    return result
model = model.bind_tools([bash])
messages = [HumanMessage(ask)]
for follow in ([], [HumanMessage(shorter)], []):
    reply = None
    for piece in model.stream(messages):
        reply = piece if reply is None else reply + piece
    messages.append(reply)
    for call in reply.tool_calls:
        messages.append(ToolMessage(bash.invoke(call["args"]), tool_call_id=call["id"]))
    messages += follow
print(messages[-1].text if isinstance(messages[-1].text, str) else messages[-1].text())
"""


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("name", "script", "last"),
    [("litellm", LITELLM, json.dumps(TOOL)), ("langchain", LANGCHAIN, "openai"), ("langchain", LANGCHAIN, "anthropic")],
    ids=["litellm", "langchain-openai", "langchain-anthropic"],
)
async def test_libraries_in_their_own_environment(name: str, script: str, last: str, tmp_path: Path) -> None:
    where = agents.directory()
    if where is None or not (where / "venv" / name / "bin" / "python").exists():
        pytest.skip(f"{name} is not installed: run install_agents.sh and set CLAWBACK_AGENTS_DIR")
    python = str(where / "venv" / name / "bin" / "python")
    async with Upstream(scripted.answer).running() as up, gateway(up.url, tmp_path, gateway_capture="none") as served:
        command = [python, "-c", script, served.url, ASK, SHORTER, RESULT, last]
        out = await agents.run(
            command, {"HOME": str(tmp_path), "LITELLM_LOCAL_MODEL_COST_MAP": "True"}, tmp_path, 200.0
        )
        assert out.strip().endswith("Short: deploy on Friday."), out[-2000:]
        await conversation_is_recorded(served)


async def test_many_conversations_at_once_stay_apart(tmp_path: Path) -> None:
    async with Upstream(scripted.answer).running() as up, gateway(up.url, tmp_path, gateway_capture="none") as served:
        client = openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="sk-a")

        async def talk(number: int) -> None:
            headers = {"x-reef-tag-session": f"s{number}"}
            for text in (f"hello {number}", f"shorter {number}"):
                messages: Any = [{"role": "user", "content": text}]
                await client.chat.completions.create(model="m", messages=messages, extra_headers=headers)

        await asyncio.gather(*(talk(n) for n in range(20)))
        records = await served.records()
    for number in range(20):
        mine = [r.request["messages"][0]["content"] for r in records if r.headers["x-reef-tag-session"] == f"s{number}"]
        assert mine == [f"hello {number}", f"shorter {number}"]
