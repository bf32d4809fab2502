"""Whole responses, and the streams in which a provider would have sent them: the reference that assembly must undo."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from typing import Any

from hypothesis import strategies as st

from libs.dialects.assembly import assembler_for

Json = dict[str, Any]
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)


def dump(payload: Any) -> str:
    return json.dumps(payload, ensure_ascii=False, separators=(",", ":"))


def event(payload: Any, name: str = "", newline: str = "\n") -> str:
    head = f"event: {name}{newline}" if name else ""
    return f"{head}data: {dump(payload)}{newline}{newline}"


def cut(text: str, places: Sequence[int]) -> list[str]:
    """The text in pieces; never an empty list."""
    bounds = sorted({p % (len(text) + 1) for p in places} | {0, len(text)})
    return [text[a:b] for a, b in itertools.pairwise(bounds)] or [""]


def chunks(data: bytes, places: Sequence[int]) -> Iterator[bytes]:
    """The bytes cut anywhere, also inside characters and line ends."""
    bounds = sorted({p % (len(data) + 1) for p in places} | {0, len(data)})
    return (data[a:b] for a, b in itertools.pairwise(bounds))


def assemble(path: str, data: bytes, places: Sequence[int] = ()) -> Any:
    assembler = assembler_for(path)
    assert assembler is not None
    for chunk in chunks(data, places):
        assembler.feed(chunk)
    return assembler.result()


@st.composite
def noise(draw: st.DrawFn, events: list[str]) -> str:
    """Comments, pings and blank lines between the events, which mean nothing."""
    fillers = st.sampled_from([": keep-alive\n\n", ":\n", "\n", "retry: 3000\n", ""])
    return "".join(draw(fillers) + e for e in events) + draw(fillers)


# --- chat completions ---


@st.composite
def chat_message(draw: st.DrawFn) -> Json:
    calls = draw(st.lists(st.tuples(st.sampled_from(["ls", "read_file"]), TEXT), max_size=3))
    message: Json = {"role": "assistant", "content": draw(TEXT.filter(bool))}
    if calls:
        message["content"] = draw(st.one_of(st.none(), TEXT.filter(bool)))
        message["tool_calls"] = [
            {"id": f"call_{i}", "type": "function", "function": {"name": name, "arguments": dump({"path": text})}}
            for i, (name, text) in enumerate(calls)
        ]
    if draw(st.booleans()):
        message["reasoning_content"] = draw(TEXT.filter(bool))
    return message


@st.composite
def chat(draw: st.DrawFn) -> Json:
    """A chat.completion with one to three choices."""
    choices = []
    for index in range(draw(st.integers(1, 3))):
        message = draw(chat_message())
        choice: Json = {"index": index, "message": message, "logprobs": None}
        if draw(st.booleans()):
            tokens = [{"token": t, "logprob": -0.5, "bytes": None, "top_logprobs": []} for t in ("a", "b")]
            choice["logprobs"] = {"content": tokens, "refusal": None}
        choice["finish_reason"] = (
            "tool_calls" if message.get("tool_calls") else draw(st.sampled_from(["stop", "length"]))
        )
        choices.append(choice)
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "system_fingerprint": draw(st.one_of(st.none(), st.just("fp_1"))),
        "choices": choices,
        "usage": {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7},
        "x_provider": draw(st.one_of(st.just("kept"), st.just({"any": [1, 2.5]}))),
    }


def chat_events(response: Json, places: Sequence[int]) -> list[str]:
    """The chunks of the response; `places` says where texts and arguments are cut."""
    top = {k: v for k, v in response.items() if k not in ("choices", "usage")} | {"object": "chat.completion.chunk"}

    def chunk(index: int, delta: Json, finish: str | None = None, logprobs: Any = None) -> str:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
        return event({**top, "choices": [choice]})

    lanes = []
    for choice in response["choices"]:
        index, message = choice["index"], choice["message"]
        lane = [chunk(index, {"role": "assistant", "content": None if message["content"] is None else ""})]
        for field in ("reasoning_content", "content"):
            lane += [chunk(index, {field: piece}) for piece in cut(message.get(field) or "", places) if piece]
        for position, call in enumerate(message.get("tool_calls", ())):
            head = {"index": position, "id": call["id"], "type": "function"}
            lane.append(chunk(index, {"tool_calls": [{**head, "function": {**call["function"], "arguments": ""}}]}))
            for piece in cut(call["function"]["arguments"], places):
                lane.append(chunk(index, {"tool_calls": [{"index": position, "function": {"arguments": piece}}]}))
        if choice["logprobs"]:
            for token in choice["logprobs"]["content"]:
                lane.append(chunk(index, {}, logprobs={"content": [token], "refusal": None}))
        lane.append(chunk(index, {}, choice["finish_reason"]))
        lanes.append(lane)
    events = [lane[i] for i in range(max(map(len, lanes))) for lane in lanes if i < len(lane)]  # choices interleave
    return [*events, event({**top, "choices": [], "usage": response["usage"]}), "data: [DONE]\n\n"]


# --- Anthropic messages ---


@st.composite
def message(draw: st.DrawFn) -> Json:
    kinds = draw(st.lists(st.sampled_from(["text", "thinking", "tool_use"]), min_size=1, max_size=4))
    content: list[Json] = []
    for position, kind in enumerate(kinds):
        text = draw(TEXT.filter(bool))
        if kind == "text":
            content.append({"type": "text", "text": text})
        elif kind == "thinking":
            content.append({"type": "thinking", "thinking": text, "signature": f"sig{position}"})
        else:
            arguments = draw(st.one_of(st.just({}), st.just({"path": text, "deep": {"n": [1, None, True]}})))
            content.append({"type": "tool_use", "id": f"toolu_{position}", "name": "read", "input": arguments})
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude",
        "content": content,
        "stop_reason": "tool_use" if kinds[-1] == "tool_use" else "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 9, "cache_read_input_tokens": 4, "output_tokens": 7},
    }


def message_events(response: Json, places: Sequence[int]) -> list[str]:
    start = {**response, "content": [], "stop_reason": None, "usage": {**response["usage"], "output_tokens": 1}}
    payloads: list[Json] = [{"type": "message_start", "message": start}, {"type": "ping"}]
    for index, block in enumerate(response["content"]):
        deltas: list[Json]
        if block["type"] == "text":
            empty = {**block, "text": ""}
            deltas = [{"type": "text_delta", "text": p} for p in cut(block["text"], places)]
        elif block["type"] == "thinking":
            empty = {**block, "thinking": "", "signature": ""}
            deltas = [{"type": "thinking_delta", "thinking": p} for p in cut(block["thinking"], places)]
            deltas.append({"type": "signature_delta", "signature": block["signature"]})
        else:
            empty = {**block, "input": {}}
            text = dump(block["input"]) if block["input"] else ""
            deltas = [{"type": "input_json_delta", "partial_json": p} for p in cut(text, places)]
        payloads.append({"type": "content_block_start", "index": index, "content_block": empty})
        payloads += [{"type": "content_block_delta", "index": index, "delta": d} for d in deltas]
        payloads.append({"type": "content_block_stop", "index": index})
    stop = {"stop_reason": response["stop_reason"], "stop_sequence": None}
    payloads.append({"type": "message_delta", "delta": stop, "usage": {"output_tokens": 7}})
    payloads.append({"type": "message_stop"})
    return [event(p, p["type"]) for p in payloads]


# --- OpenAI responses ---


@st.composite
def response(draw: st.DrawFn) -> Json:
    output: list[Json] = []
    for position, kind in enumerate(draw(st.lists(st.sampled_from(["message", "call"]), min_size=1, max_size=3))):
        text = draw(TEXT.filter(bool))
        if kind == "message":
            part = {"type": "output_text", "text": text, "annotations": []}
            output.append({"id": f"msg_{position}", "type": "message", "role": "assistant", "content": [part]})
        else:
            call = {"id": f"fc_{position}", "type": "function_call", "call_id": f"call_{position}", "name": "ls"}
            output.append({**call, "arguments": dump({"path": text})})
    usage = {"input_tokens": 1, "output_tokens": 2, "total_tokens": 3}
    return {"id": "resp_1", "object": "response", "status": "completed", "output": output, "usage": usage}


def response_events(whole: Json, places: Sequence[int]) -> list[str]:
    created = {**whole, "status": "in_progress", "output": [], "usage": None}
    payloads: list[Json] = [{"type": "response.created", "response": created}]
    for index, item in enumerate(whole["output"]):
        at = {"item_id": item["id"], "output_index": index}
        if item["type"] == "message":
            empty = {**item, "content": []}
            text, kind, extra = item["content"][0]["text"], "response.output_text.delta", {"content_index": 0}
        else:
            empty = {**item, "arguments": ""}
            text, kind, extra = item["arguments"], "response.function_call_arguments.delta", {}
        payloads.append({"type": "response.output_item.added", "output_index": index, "item": empty})
        payloads += [{"type": kind, **at, **extra, "delta": p} for p in cut(text, places)]
        payloads.append({"type": "response.output_item.done", "output_index": index, "item": item})
    payloads.append({"type": "response.completed", "response": whole})
    return [event(p, p["type"]) for p in payloads]
