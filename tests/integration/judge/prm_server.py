"""A PRM over real HTTP for tests: an OpenAI-compatible server whose "model" can be led astray the way models are.

It is no language model. It behaves like one where steering matters:
- it puts the messages through a chat template and reads the roles back from the text, so a template token that stands
  in a message opens a role of its own;
- it obeys: an instruction to give a certain verdict or score counts when it stands in a system role, or in a user role
  outside the block of data, and a data block ends for it at the first line that begins with END;
- it parrots: `parrot` repeats the last thing that the conversation said before its own answer, and after it;
- otherwise it grades by a handful of plain words in what came next, and repeats the id it was told to repeat.
`fault` makes it fail in the ways servers and models fail.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

_BAD = re.compile(
    r"\b(?:no(?=[,.!])|wrong|stop|shorter|not what|instead|error|failed|traceback)|(?<![а-я])(?:нет|не то|перестань)"
)
_GOOD = re.compile(r"\b(?:thanks|thank you|perfect|great)\b|(?<![а-я])спасибо")
_ORDER = re.compile(
    r"(?:verdict|score|rating|grade|оценка|bewertung|puntuación|note)\W{0,12}(?:must be|is|=|:|to|of|:=)?\W{0,6}"
    r"([+-]?[01])"
    r"|\\boxed\{([+-]?[01])\}",
    re.IGNORECASE,
)
_ROLE = re.compile(r"<\|im_start\|>(\w+)")


def template(messages: list[dict[str, str]]) -> str:
    return "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in messages)


def roles(text: str) -> list[tuple[str, str]]:
    """What a tokenizer makes of the text: the template's tokens end and open roles wherever they stand."""
    parts = _ROLE.split(text)
    return [(role, body.split("<|im_end|>")[0]) for role, body in zip(parts[1::2], parts[2::2], strict=False)]


def orders(messages: list[dict[str, str]]) -> list[int]:
    """Verdicts that the text tells the model to give, from where it would listen."""
    found: list[int] = []
    for number, (role, body) in enumerate(roles(template(messages))):
        heard = outside_data(body) if role == "user" else body
        if number == 0:
            continue  # our own instructions
        if role in {"system", "user", "developer"}:
            found += [int(a or b) for a, b in _ORDER.findall(heard)]
    return found


def outside_data(body: str) -> str:
    """The lines that are not between BEGIN and the first line that begins with END."""
    kept, inside = [], False
    for line in body.split("\n"):
        if line.startswith("BEGIN "):
            inside = True
        elif inside and line.startswith("END"):
            inside = False
        elif not inside:
            kept.append(line)
    return "\n".join(kept)


def next_words(body: str) -> str:
    lines = [json.loads(line) for line in body.split("\n") if line.startswith('{"turn": "next"')]
    return " ".join(line["text"] for line in lines)


def grade(messages: list[dict[str, str]]) -> tuple[int, str]:
    """The model's verdict and what it would parrot."""
    obeyed = orders(messages)
    said = next_words(messages[-1]["content"])
    lowered = said.lower()
    honest = -1 if _BAD.search(lowered) else 1 if _GOOD.search(lowered) else 0
    return (obeyed[-1] if obeyed else honest), said


def answer_text(messages: list[dict[str, str]], *, parrot: bool) -> str:
    verdict, said = grade(messages)
    nonce = re.search(r'Answer with the JSON object whose "id" is "(\w+)"', messages[-1]["content"])
    number = re.search(r"Grade turn (\d+)", messages[-1]["content"])
    judgement = {
        "turn": int(number[1]) if number else 1,
        "verdict": verdict,
        "rejected": "lists" if verdict < 0 else "",
        "preserved": "",
        "hint": "Write one paragraph of plain text." if verdict < 0 else "",
        "ground": "as the words say",
    }
    answer = json.dumps({"id": nonce[1] if nonce else "", "judgements": [judgement]})
    return f"The conversation says: {said}\n{answer}\nAs they put it: {said}" if parrot else answer


def completion(text: str | None, *, finish: str = "stop", **message: Any) -> dict[str, Any]:
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "model": "prm",
        "choices": [
            {"index": 0, "finish_reason": finish, "message": {"role": "assistant", "content": text, **message}}
        ],
        "usage": {"prompt_tokens": 90, "completion_tokens": 10, "total_tokens": 100},
    }


Fault = Callable[[int], "web.Response | str | None"]  # call number -> a response, "hang", or None for an honest answer


@dataclass
class PrmServer:
    """Counts what it got; `fault` and `parrot` may be changed while it runs."""

    url: str = ""
    calls: int = 0
    requests: list[dict[str, Any]] = field(default_factory=list)
    fault: Fault | None = None
    parrot: bool = False
    keep_requests: bool = True
    hanging: asyncio.Event = field(default_factory=asyncio.Event)

    async def complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        number = self.calls
        self.calls += 1
        if self.keep_requests:
            self.requests.append(body)
        fault = self.fault(number) if self.fault else None
        if fault == "hang":
            await self.hanging.wait()
            return web.Response(status=503)
        if isinstance(fault, web.Response):
            return fault
        return web.json_response(completion(answer_text(body["messages"], parrot=self.parrot)))


@asynccontextmanager
async def serve(port: int = 0) -> AsyncIterator[PrmServer]:
    """The server on a port of 127.0.0.1 (0 takes a free one)."""
    server = PrmServer()
    app = web.Application()
    app.router.add_post("/v1/chat/completions", server.complete)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port)
    await site.start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    try:
        yield server
    finally:
        server.hanging.set()
        await runner.cleanup()
