"""Canaries: secrets and personal data planted everywhere a client can put them show up nowhere that we keep.

Gateway and matcher run as processes on a real broker and Redis; afterwards every topic, every Redis key, the spool,
the logs and the error bodies are searched for every canary, also in base64 and JSON-escaped form.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from redis import Redis

from deploy.local import broker as local_broker
from deploy.topics.create import create
from libs.contracts import TOPICS, TrafficRaw, decode
from libs.streams.config import ServiceSettings
from libs.streams.follow import read
from tests.integration.gateway.harness import Upstream, chat_chunk, process, sse, stream_bytes
from tests.integration.gateway.test_gateway_thin import CAPTURE

pytestmark = pytest.mark.integration

CHAT = "/v1/chat/completions"
CLIENT_TOKEN = "sk-clawback-Client9Qm4Zt7Rw2Xk5Vb8"
UPSTREAM_KEY = "sk-upstream-Key3Fg6Hj9Kl2Mn5Pq8"
COOKIE = "sid-Cookie7Yu4Io1Pa8Sd5Fg2"
IN_TEXT = {
    "llm key": "sk-proj-Txt5Dd8Gg1Jj4Mm7Pp0Ss3Vv6",
    "github": "ghp_1234567890abcdefghijklmnopqrstuvwx12",
    "aws": "AKIAQWERTYUIOPASDFGH",
    "card": "4111 1111 1111 1111",
    "email": "jane.doe@example.com",
    "phone": "+1 (415) 555-2671",
    "database": "s3cr3tpw9Zk",
}
# A password alone is a word like any other; only its place gives it away.
SAID = f"postgres://bob:{IN_TEXT['database']}@db.internal/x " + " and ".join(list(IN_TEXT.values())[:-1])
CANARIES = {**IN_TEXT, "client token": CLIENT_TOKEN, "upstream key": UPSTREAM_KEY, "cookie": COOKIE}
TOKENS = json.dumps({sha256(CLIENT_TOKEN.encode()).hexdigest(): "acme"})


async def answer(request: web.Request, body: bytes) -> web.StreamResponse:
    asked = json.loads(body or b"{}")
    if asked.get("fail"):
        refused = {"error": {"message": f"Incorrect API key provided: {request.headers['Authorization'][7:]}"}}
        return web.json_response(refused, status=401, headers={"Set-Cookie": COOKIE})
    beside = {"release_id": "maths@00001-abcdef01", "capture": CAPTURE}
    reply = f"Noted: {SAID}" if asked.get("echo") else "Noted."
    if asked.get("stream"):
        half = len(reply) // 2
        chunks = [sse(chat_chunk(p, role="assistant"), done=False) for p in (reply[:half], reply[half:])]
        capture = sse({"object": "clawback.capture", "clawback": beside}, done=False)
        return await stream_bytes(request, *chunks, capture + b"data: [DONE]\n\n")
    message = {"role": "assistant", "content": reply}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return web.json_response({"id": "c", "choices": [choice], "clawback": beside})


@contextmanager
def matcher(env: dict[str, str], log: Path) -> Iterator[None]:
    """The matcher as its own process, with every line of its log kept."""
    with log.open("ab") as out:
        child = subprocess.Popen(
            [sys.executable, "-m", "services.matcher"], env={**os.environ, **env}, stdout=out, stderr=out
        )
        try:
            yield
        finally:
            child.terminate()
            child.wait(30)


def requests() -> list[dict[str, Any]]:
    user = {"role": "user", "content": SAID}
    call = {"id": "c1", "type": "function", "function": {"name": "send", "arguments": json.dumps({"to": SAID})}}
    history = [user, {"role": "assistant", "content": None, "tool_calls": [call]}]
    history += [{"role": "tool", "tool_call_id": "c1", "content": SAID}, {"role": "user", "content": "thanks"}]
    plain = [{"role": "user", "content": "What is two plus two?"}]
    return [
        {"messages": [user], "echo": True},
        {"messages": [user], "echo": True, "stream": True},
        {"messages": history, "user": IN_TEXT["email"], "metadata": {"user_id": IN_TEXT["email"], SAID: 1}},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": SAID}]}], "fail": True},
        {"messages": plain, "echo": True},
        {"messages": plain},
        {"messages": [*plain, {"role": "assistant", "content": "Noted."}, user]},
    ]


@pytest.fixture
def own_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceSettings]:
    """A broker of this test's own: services read their topics by the plain names."""
    broker, bootstrap = local_broker.start(tmp_path_factory.mktemp("broker") / "broker.log")
    tuned = {k.removeprefix("CLAWBACK_").lower(): v for k, v in local_broker.CLIENT_ENV.items()}
    settings = ServiceSettings(kafka_bootstrap_servers=bootstrap, **tuned)
    asyncio.run(create(settings, local=True))
    yield settings
    broker.stop(5.0)


@pytest.mark.timeout(180)
async def test_no_canary_survives(tmp_path: Path, own_broker: ServiceSettings, redis_url: str) -> None:
    env = {
        **local_broker.CLIENT_ENV,
        "CLAWBACK_KAFKA_BOOTSTRAP_SERVERS": own_broker.kafka_bootstrap_servers,
        "CLAWBACK_HOME": str(tmp_path),
        "CLAWBACK_HTTP_PORT": "0",
        "CLAWBACK_REDIS_URL": redis_url,
        "CLAWBACK_LOG_LEVEL": "DEBUG",
    }
    bodies = await _drive(tmp_path, env)
    with matcher(env, tmp_path / "matcher.log"):
        await _classified(own_broker, len(requests()))
    topics = {topic: [r async for r in read(own_broker, [topic]) if r] for topic in TOPICS}
    records = [decode(r.value, TrafficRaw) for r in topics["traffic.raw"]]
    assert len(records) == len(requests())
    places: dict[str, bytes] = {f"topic {t}": b"\n".join(_raw(r) for r in rs) for t, rs in topics.items()}
    places["redis"] = _redis(redis_url)
    places |= _files(tmp_path)
    places["what clients got of errors"] = b"\n".join(bodies)
    for place, data in places.items():
        for name, canary in CANARIES.items():
            for form in _forms(canary):
                assert form not in data, f"the {name} canary is in {place}"
    with_capture = [r for r in records if r.capture is not None]
    assert [r.request["messages"][-1]["content"] for r in with_capture] == ["What is two plus two?"]
    assert all("[redacted:" in json.dumps([r.request, r.response]) for r in records if r.capture is None)


async def _classified(settings: ServiceSettings, count: int) -> None:
    """Until the matcher has said something about every exchange."""
    async with asyncio.timeout(90):
        async for record in read(settings, ["exchanges.classified"], follow=True):
            count -= record is not None
            if not count:
                return


async def _drive(tmp_path: Path, env: dict[str, str]) -> list[bytes]:
    """Send everything; returns the error bodies, with their headers, that clients got."""
    got: list[bytes] = []
    async with Upstream(answer).running() as upstream, aiohttp.ClientSession() as session:
        env = {
            **env,
            "CLAWBACK_GATEWAY_UPSTREAM_URL": upstream.url,
            "CLAWBACK_GATEWAY_UPSTREAM_API_KEY": UPSTREAM_KEY,
            "CLAWBACK_GATEWAY_TOKENS": TOKENS,
        }
        headers = {"Authorization": f"Bearer {CLIENT_TOKEN}", "Cookie": COOKIE, "x-reef-tag-session": IN_TEXT["email"]}
        headers |= {"x-reef-tag-user": IN_TEXT["phone"], "User-Agent": f"agent/1 ({IN_TEXT['llm key']})"}
        with process(env, tmp_path / "gateway.log") as (child, url):
            for body in requests():
                async with session.post(url + CHAT, json=body, headers=headers) as response:
                    data = await response.read()
                    if response.status >= 400:
                        got += [data, str(response.headers).encode()]
                        assert response.status == 401 and b"[redacted]" in data
            for path in (CHAT, "/v1/embeddings"):
                wrong = {"Authorization": f"Bearer {CLIENT_TOKEN}x"}
                async with session.post(url + path, json=requests()[0], headers=wrong) as response:
                    assert response.status == 401
                    got += [await response.read(), str(response.headers).encode()]
            got.append(await _unreadable(url))
            async with session.get(f"{url}/metrics") as response:
                got.append(await response.read())
            child.terminate()
            assert await asyncio.to_thread(child.wait, 30) == 0
    return got


async def _unreadable(url: str) -> bytes:
    """The answer to a request that the HTTP parser refuses because of a byte beside the token."""
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {CLIENT_TOKEN}\0\r\n\r\n".encode())
    answer = await reader.read()
    writer.close()
    assert b"malformed_request" in answer
    return answer


def _files(directory: Path) -> dict[str, bytes]:
    """Spool, key and log files."""
    return {str(p.relative_to(directory)): p.read_bytes() for p in directory.rglob("*") if p.is_file()}


def _raw(record: Any) -> bytes:
    return b"%s %s" % (record.key or b"", record.value)


def _redis(url: str) -> bytes:
    with Redis.from_url(url) as client:
        found = b"\n".join(key + b" " + _value(client, key) for key in client.scan_iter("*"))
    assert found, "the matcher keeps its state in Redis"
    return found


def _value(client: Any, key: bytes) -> bytes:
    kind = client.type(key)
    if kind == b"string":
        return bytes(client.get(key))
    if kind == b"hash":
        return b" ".join(b"%s=%s" % pair for pair in client.hgetall(key).items())
    if kind == b"list":
        return b" ".join(client.lrange(key, 0, -1))
    if kind == b"set":
        return b" ".join(client.smembers(key))
    if kind == b"zset":
        return b" ".join(client.zrange(key, 0, -1))
    raise AssertionError(f"{key!r} is a {kind!r}: teach the canary suite to read it")


def _forms(canary: str) -> list[bytes]:
    plain = canary.encode()
    return [plain, base64.b64encode(plain).rstrip(b"="), json.dumps(canary)[1:-1].encode(), plain.hex().encode()]
