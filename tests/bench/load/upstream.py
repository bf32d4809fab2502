"""An OpenAI-compatible server that answers at once, in the place of a farm of engines: the pipeline is measured."""

from __future__ import annotations

import itertools
import sys
import time

from aiohttp import web

_numbers = itertools.count()


async def complete(request: web.Request) -> web.Response:
    await request.read()
    number = next(_numbers)
    text = f"**Answer {number}**\n\n- Ice is less dense than water.\n- Less dense things float.\n- So ice floats."
    return web.json_response(
        {
            "id": f"chatcmpl-{number}",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": "upstream",
            "choices": [
                {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"},
            ],
            "usage": {"prompt_tokens": 20, "completion_tokens": 30, "total_tokens": 50},
        }
    )


if __name__ == "__main__":
    app = web.Application(client_max_size=64 * 1024 * 1024)
    app.router.add_post("/v1/chat/completions", complete)
    web.run_app(app, host="127.0.0.1", port=int(sys.argv[1]), access_log=None, print=lambda *_: None)
