"""The upstream of the gateway bench: a fixed chat completion after 5 ms, whole or streamed, cheap enough not to count.

Asked for a capture it adds one of 100 tokens, as the built-in policy does. Prints its port.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from typing import cast

import msgspec
import uvloop

from libs.contracts import Array, Capture

DELAY_SECONDS = 0.005
TOKENS, K = 100, 4
TEXT = "Mix the flour, the water and the salt, let it rest, knead it, and bake it until it is brown. " * 4


def capture() -> bytes:
    random.seed(7)
    rows = [random.randrange(49152) for _ in range(TOKENS * K)]
    made = Capture(
        prompt_token_ids=Array.ints(rows[:300]),
        response_token_ids=Array.ints(rows[:TOKENS]),
        logprobs=Array.floats([-0.5] * TOKENS),
        topk_ids=Array.ints(rows, [TOKENS, K]),
        topk_logprobs=Array.floats([-1.5] * TOKENS * K, [TOKENS, K]),
    )
    return b'"clawback":{"release_id":"bench@00001-abcdef01","capture":' + msgspec.json.encode(made) + b"}"


def whole() -> bytes:
    message = {"role": "assistant", "content": TEXT}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
    usage = {"prompt_tokens": 300, "completion_tokens": 100, "total_tokens": 400}
    top = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "bench"}
    return json.dumps({**top, "choices": [choice], "usage": usage}).encode()


def chunk(delta: dict[str, str], finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    top = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "bench", "choices": [choice]}
    return b"data: " + json.dumps(top).encode() + b"\n\n"


PLAIN = whole()
BESIDE = capture()
WITH_CAPTURE = PLAIN[:-1] + b"," + BESIDE + b"}"
CHUNKS = [chunk({"content": TEXT[i : i + 12]}) for i in range(0, len(TEXT), 12)] + [chunk({}, "stop")]
EVENT = b'data: {"object":"clawback.capture",' + BESIDE + b"}\n\n"
DONE = b"data: [DONE]\n\n"


def http(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body


def frame(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


class Upstream(asyncio.Protocol):
    """Just enough HTTP/1.1: one request at a time on a connection, with a Content-Length."""

    def __init__(self) -> None:
        self._buffer = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is not a subclass

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, found, body = self._buffer.partition(b"\r\n\r\n")
        if not found:
            return
        lower = head.lower()
        length = int(lower.partition(b"content-length:")[2].split(b"\r\n")[0] or 0)
        if len(body) < length:
            return
        self._buffer = body[length:]
        asked = b"x-clawback-capture" in lower
        streamed = b'"stream": true' in body or b'"stream":true' in body
        asyncio.get_running_loop().call_later(DELAY_SECONDS, self._stream if streamed else self._answer, asked)

    def _answer(self, asked: bool) -> None:
        if self._transport and not self._transport.is_closing():
            self._transport.write(http(WITH_CAPTURE if asked else PLAIN))

    def _stream(self, asked: bool) -> None:
        if self._transport and not self._transport.is_closing():
            self._transport.write(STREAM_HEAD + frame(CHUNKS[0]))
            asyncio.get_running_loop().call_later(0.002, self._rest, asked)

    def _rest(self, asked: bool) -> None:
        if self._transport and not self._transport.is_closing():
            tail = [*CHUNKS[1:], *([EVENT] if asked else []), DONE]
            self._transport.write(b"".join(map(frame, tail)) + b"0\r\n\r\n")


async def main() -> None:
    server = await asyncio.get_running_loop().create_server(Upstream, "127.0.0.1", int(sys.argv[1]))
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main())
