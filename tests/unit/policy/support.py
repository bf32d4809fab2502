"""A whole policy server in the test's event loop: real HTTP, real engine, small model."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from libs.learning.engine.chat import ChatTokenizer
from libs.learning.engine.decoder import Decoder
from libs.learning.engine.engine import Engine, Limits
from libs.learning.engine.sequence import Release
from libs.learning.engine.weights import load_weights
from services.policy.app import PolicyApp
from services.policy.scenarios import Scenarios
from services.policy.server import load_weights_of
from services.policy.worker import EngineWorker

CHAT = "/v1/chat/completions"


class Running:
    """The parts of a running server, for tests that reach inside."""

    def __init__(self, model_dir: Path, limits: Limits, max_waiting: int, budget_bytes: int) -> None:
        weights = load_weights(model_dir)
        self.tokenizer = ChatTokenizer(model_dir)
        self.engine = Engine(weights, self.tokenizer.decode, limits)
        self.worker = EngineWorker(self.engine, max_waiting)
        decoder = Decoder(weights)
        self.scenarios = Scenarios(
            Release("base", decoder),
            partial(load_weights_of, decoder),
            budget_bytes=budget_bytes,
            on_change=self.worker.forget_releases,
        )
        self.policy = PolicyApp(
            model_name="tiny",
            tokenizer=self.tokenizer,
            engine=self.engine,
            worker=self.worker,
            scenarios=self.scenarios,
            stop_ids=weights.shape.eos_ids,
            default_max_tokens=16,
        )
        self.client: TestClient[Any, Any]

    async def ask(self, headers: dict[str, str] | None = None, **body: Any) -> Any:
        """POST a chat completion; returns (status, headers, parsed body)."""
        values = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8, **body}
        async with self.client.post(CHAT, json=values, headers=headers or {}) as response:
            return response.status, response.headers, await response.json()


@asynccontextmanager
async def running(
    model_dir: Path, *, limits: Limits | None = None, max_waiting: int = 64, budget_bytes: int = 10**9
) -> AsyncIterator[Running]:
    server = Running(model_dir, limits or Limits(), max_waiting, budget_bytes)
    app = web.Application()
    server.policy.routes(app)
    server.worker.start()
    test_server = TestServer(app)
    await test_server.start_server()
    server.client = TestClient(test_server)
    try:
        yield server
    finally:
        await server.client.close()
        await server.worker.stop()
