"""A PRM that answers at once, as a process of its own: `python -m tests.integration.judge.instant <port>`. For load."""

from __future__ import annotations

import json
import re
import sys

from aiohttp import web

_NONCE = re.compile(rb'\\"id\\" is \\"(\w{16})\\"')
_NUMBER = re.compile(rb"Grade turn (\d+)")


async def complete(request: web.Request) -> web.Response:
    body = await request.read()
    nonce, number = _NONCE.search(body), _NUMBER.search(body)
    if nonce is None or number is None:
        return web.json_response({"error": {"message": "no question in the request"}}, status=400)
    judgement = {"turn": int(number[1]), "verdict": -1, "rejected": "lists", "preserved": "", "hint": "Write prose."}
    answer = json.dumps({"id": nonce[1].decode(), "judgements": [judgement]})
    return web.json_response(
        {
            "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": answer}}],
            "usage": {"total_tokens": len(body) // 4},
        }
    )


if __name__ == "__main__":
    app = web.Application(client_max_size=8 * 1024 * 1024)
    app.router.add_post("/v1/chat/completions", complete)
    web.run_app(app, host="127.0.0.1", port=int(sys.argv[1]), access_log=None, print=None)
