"""A provider with a script, for real agents: asked about a file it calls the agent's own tool, then answers.

Speaks chat completions, Anthropic messages and OpenAI responses, streamed or not. Run alone it prints its URL:
`python -m tests.integration.gateway.scripted`.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from tests.integration.gateway.harness import Upstream, stream_bytes

COMMAND = "cat notes.txt"
FILE = "notes.txt"
_SHELLS = ("exec_command", "shell_command", "shell", "Bash", "bash", "run_shell_command", "terminal")
_ids = itertools.count(1)


@dataclass(frozen=True)
class Call:
    """The tool call that the script wants."""

    id: str
    name: str
    arguments: dict[str, Any]


def next_step(tools: dict[str, dict[str, Any]], history: list[tuple[str, str]]) -> str | Call:
    """`history` is (role, text), roles user, assistant, tool. A side request without tools gets a short text."""
    role, text = history[-1] if history else ("user", "")
    if role == "tool":
        return f"The file says: {text.strip()[-400:]}"
    shell = next((name for name in _SHELLS if name in tools), None)
    if shell and FILE in text:
        return Call(f"call_{next(_ids)}", shell, _arguments(tools[shell]))
    if "shorter" in text.lower():
        return "Short: deploy on Friday."
    return "Understood."


def _arguments(schema: dict[str, Any]) -> dict[str, Any]:
    properties = schema.get("properties") or {}
    name = next((n for n in ("cmd", "command") if n in properties), "command")
    value: Any = ["bash", "-lc", COMMAND] if properties.get(name, {}).get("type") == "array" else COMMAND
    filled = {"description": "Show the notes", "is_background": False, "timeout": 10_000}
    return {name: value, **{k: v for k, v in filled.items() if k in (schema.get("required") or ())}}


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(_text(p.get("text") or p.get("content") or "") for p in content if isinstance(p, dict))
    return ""


async def answer(request: web.Request, body: bytes) -> web.StreamResponse:
    path = request.path
    if request.method == "GET":
        return web.json_response({"object": "list", "data": [{"id": "scripted", "object": "model", "owned_by": "x"}]})
    asked = json.loads(body or b"{}")
    if path.endswith("/count_tokens"):
        return web.json_response({"input_tokens": len(body) // 4})
    for end, serve in ((("/chat/completions"), _chat), ("/messages", _messages), ("/responses", _responses)):
        if path.endswith(end):
            return await serve(request, asked)
    return web.json_response({"error": {"message": f"no {path} here", "type": "invalid_request_error"}}, status=404)


# --- chat completions ---


async def _chat(request: web.Request, asked: dict[str, Any]) -> web.StreamResponse:
    tools = {t["function"]["name"]: t["function"].get("parameters") or {} for t in asked.get("tools") or ()}
    history = [(m["role"], _text(m.get("content"))) for m in asked["messages"] if m["role"] != "system"]
    step = next_step(tools, history)
    base = {"id": f"chatcmpl-{next(_ids)}", "created": 1, "model": asked.get("model", "scripted")}
    usage = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
    if isinstance(step, str):
        message: dict[str, Any] = {"role": "assistant", "content": step}
        finish, pieces = "stop", [{"content": step[:5]}, {"content": step[5:]}]
    else:
        arguments = json.dumps(step.arguments)
        function = {"name": step.name, "arguments": arguments}
        message = {"role": "assistant", "content": None, "tool_calls": [{"id": step.id, "type": "function"}]}
        message["tool_calls"][0]["function"] = function
        finish, cut = "tool_calls", len(arguments) // 2
        head = {"index": 0, "id": step.id, "type": "function", "function": {"name": step.name, "arguments": ""}}
        parts = [{"index": 0, "function": {"arguments": a}} for a in (arguments[:cut], arguments[cut:])]
        pieces = [{"tool_calls": [p]} for p in (head, *parts)]
    if not asked.get("stream"):
        choice = {"index": 0, "message": message, "finish_reason": finish, "logprobs": None}
        return web.json_response({**base, "object": "chat.completion", "choices": [choice], "usage": usage})
    deltas = [{"role": "assistant", "content": None}, *pieces]
    chunks = [_chat_chunk(base, [{"index": 0, "delta": d, "finish_reason": None}]) for d in deltas]
    chunks.append(_chat_chunk(base, [{"index": 0, "delta": {}, "finish_reason": finish}]))
    chunks.append({**_chat_chunk(base, []), "usage": usage})
    return await stream_bytes(request, *(_data(c) for c in chunks), b"data: [DONE]\n\n")


def _chat_chunk(base: dict[str, Any], choices: list[dict[str, Any]]) -> dict[str, Any]:
    return {**base, "object": "chat.completion.chunk", "choices": choices}


# --- Anthropic messages ---


async def _messages(request: web.Request, asked: dict[str, Any]) -> web.StreamResponse:
    tools = {t["name"]: t.get("input_schema") or {} for t in asked.get("tools") or () if "name" in t}
    step = next_step(tools, list(itertools.chain.from_iterable(map(_message_parts, asked["messages"]))))
    usage = {"input_tokens": 100, "output_tokens": 10, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}
    base: dict[str, Any] = {
        "id": f"msg_{next(_ids)}",
        "type": "message",
        "role": "assistant",
        "model": asked.get("model", "scripted"),
    }
    block: dict[str, Any]
    if isinstance(step, str):
        block, stop = {"type": "text", "text": step}, "end_turn"
        empty, key, kind, whole = {"type": "text", "text": ""}, "text", "text_delta", step
    else:
        block = {"type": "tool_use", "id": step.id.replace("call", "toolu"), "name": step.name, "input": step.arguments}
        stop, whole = "tool_use", json.dumps(step.arguments)
        empty, key, kind = {**block, "input": {}}, "partial_json", "input_json_delta"
    if not asked.get("stream"):
        done = {**base, "content": [block], "stop_reason": stop, "stop_sequence": None, "usage": usage}
        return web.json_response(done)
    start = {**base, "content": [], "stop_reason": None, "stop_sequence": None, "usage": {**usage, "output_tokens": 1}}
    halves = (whole[: len(whole) // 2], whole[len(whole) // 2 :])
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": start},
        {"type": "content_block_start", "index": 0, "content_block": empty},
        {"type": "ping"},
        *({"type": "content_block_delta", "index": 0, "delta": {"type": kind, key: half}} for half in halves),
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": stop, "stop_sequence": None}, "usage": usage},
        {"type": "message_stop"},
    ]
    return await stream_bytes(request, *(_named(e) for e in events))


def _message_parts(message: dict[str, Any]) -> list[tuple[str, str]]:
    if message["role"] == "system":  # some agents put reminders behind the user's words
        return []
    if isinstance(message["content"], str):
        return [(message["role"], message["content"])]
    results = [p for p in message["content"] if p.get("type") == "tool_result"]
    if results:
        return [("tool", _text(p.get("content"))) for p in results]
    return [(message["role"], _text(message["content"]))]


# --- OpenAI responses ---


async def _responses(request: web.Request, asked: dict[str, Any]) -> web.StreamResponse:
    tools = {t["name"]: t.get("parameters") or {} for t in asked.get("tools") or () if "name" in t}
    step = next_step(tools, [p for item in _items(asked.get("input")) if (p := _item_part(item))])
    response: dict[str, Any] = {
        "id": f"resp_{next(_ids)}",
        "object": "response",
        "created_at": 1,
        "status": "in_progress",
        "model": asked.get("model", "scripted"),
        "output": [],
    }
    item: dict[str, Any]
    if isinstance(step, str):
        part = {"type": "output_text", "text": step, "annotations": []}
        item = {"id": f"msg_{next(_ids)}", "type": "message", "status": "completed", "role": "assistant"}
        item["content"] = [part]
        at = {"item_id": item["id"], "output_index": 0, "content_index": 0}
        middle = [
            {"type": "response.content_part.added", **at, "part": {**part, "text": ""}},
            {"type": "response.output_text.delta", **at, "delta": step[:5]},
            {"type": "response.output_text.delta", **at, "delta": step[5:]},
            {"type": "response.output_text.done", **at, "text": step},
            {"type": "response.content_part.done", **at, "part": part},
        ]
        added = {**item, "status": "in_progress", "content": []}
    else:
        arguments = json.dumps(step.arguments)
        item = {"id": f"fc_{next(_ids)}", "type": "function_call", "status": "completed", "call_id": step.id}
        item |= {"name": step.name, "arguments": arguments}
        at = {"item_id": item["id"], "output_index": 0}
        middle = [
            {"type": "response.function_call_arguments.delta", **at, "delta": arguments},
            {"type": "response.function_call_arguments.done", **at, "arguments": arguments},
        ]
        added = {**item, "status": "in_progress", "arguments": ""}
    usage = {"input_tokens": 100, "output_tokens": 10, "total_tokens": 110}
    usage |= {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
    done = {**response, "status": "completed", "output": [item], "usage": usage}
    if not asked.get("stream"):
        return web.json_response(done)
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": response},
        {"type": "response.in_progress", "response": response},
        {"type": "response.output_item.added", "output_index": 0, "item": added},
        *middle,
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": done},
    ]
    return await stream_bytes(request, *(_named({**e, "sequence_number": n}) for n, e in enumerate(events)))


def _items(given: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": given}] if isinstance(given, str) else list(given or ())


def _item_part(item: dict[str, Any]) -> tuple[str, str] | None:
    kind = item.get("type", "message")
    if kind in ("function_call_output", "custom_tool_call_output"):
        output = item.get("output")
        return "tool", output if isinstance(output, str) else _text(output)
    if kind == "message" and item.get("role") in ("user", "assistant"):
        return item["role"], _text(item.get("content"))
    return None


def _data(payload: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(payload, separators=(",", ":")).encode() + b"\n\n"


def _named(payload: dict[str, Any]) -> bytes:
    return f"event: {payload['type']}\n".encode() + _data(payload)


async def main() -> None:
    async with Upstream(answer).running() as upstream:
        print(upstream.url, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
