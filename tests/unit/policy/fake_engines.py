"""Servers that answer as vLLM and SGLang do: paths, field names, status codes and wording from their own source.

They hold state as the real ones do (which adapters are loaded, which weights), so that a wrong order of calls fails.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from aiohttp import web

BASE = "org/base-model"


class FakeEngine:
    """What both share: the OpenAI routes, a gate that holds answers back, and what was seen."""

    def __init__(self) -> None:
        self.adapters: dict[str, str] = {}
        self.weights = "base"
        self.seen: list[tuple[str, Any]] = []
        self.release_answers = asyncio.Event()
        self.release_answers.set()
        self.generating = 0
        self.started, self.unloaded = asyncio.Event(), asyncio.Event()
        self.swapped_while_generating = False

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/health", self._health)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/chat/completions", self._chat)
        self.management(app)
        return app

    def management(self, app: web.Application) -> None:
        raise NotImplementedError

    def adapter_of(self, model: str) -> str | None:
        """The adapter that a request's model names; None for the base. Raises KeyError for an unknown one."""
        raise NotImplementedError

    def unknown_model(self, model: str) -> web.Response:
        raise NotImplementedError

    async def _health(self, _request: web.Request) -> web.Response:
        return web.Response()

    async def _models(self, _request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": BASE, "object": "model"}]})

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.seen.append(("chat", {**body, "authorization": request.headers.get("authorization")}))
        try:
            adapter = self.adapter_of(body["model"])
        except KeyError:
            return self.unknown_model(body["model"])
        text = f"{self.weights}+{adapter}" if adapter else self.weights
        self.generating += 1
        self.started.set()
        try:
            await self.release_answers.wait()
        finally:
            self.generating -= 1
        if body.get("stream"):
            return await self._stream(request, body["model"], text)
        choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        return web.json_response({"object": "chat.completion", "model": body["model"], "choices": [choice]})

    async def _stream(self, request: web.Request, model: str, text: str) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for part in (text[:3], text[3:]):
            chunk = {"model": model, "choices": [{"index": 0, "delta": {"content": part}}]}
            await response.write(f"data: {json.dumps(chunk)}\n\n".encode())
        await response.write(b"data: [DONE]\n\n")
        return response

    def swap(self, path: str) -> None:
        self.swapped_while_generating |= self.generating > 0
        self.weights = path


class FakeVllm(FakeEngine):
    """vLLM with VLLM_ALLOW_RUNTIME_LORA_UPDATING=True and VLLM_SERVER_DEV_MODE=1."""

    def management(self, app: web.Application) -> None:
        app.router.add_post("/v1/load_lora_adapter", self._load)
        app.router.add_post("/v1/unload_lora_adapter", self._unload)
        app.router.add_post("/collective_rpc", self._rpc)
        app.router.add_post("/reset_prefix_cache", self._reset)

    def adapter_of(self, model: str) -> str | None:
        return None if model == BASE else (self.adapters[model] and model)

    def unknown_model(self, model: str) -> web.Response:
        return self._error(404, f"The model `{model}` does not exist.", "NotFoundError", "model")

    @staticmethod
    def _error(status: int, message: str, kind: str, param: str | None = None) -> web.Response:
        error = {"message": message, "type": kind, "param": param, "code": status}
        return web.json_response({"error": error}, status=status)

    async def _load(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.seen.append(("load", body))
        name, path = body["lora_name"], body["lora_path"]
        if name in self.adapters:
            text = f"The lora adapter '{name}' has already been loaded. If you want to load the adapter in place, set"
            return self._error(400, f"{text} 'load_inplace' to True.", "InvalidUserInput")
        if "unfit" in path:
            return self._error(400, "LoRA rank 64 is greater than max_lora_rank 16.", "BadRequestError")
        self.adapters[name] = path
        return web.Response(text=f"Success: LoRA adapter '{name}' added successfully.")

    async def _unload(self, request: web.Request) -> web.Response:
        name = (await request.json())["lora_name"]
        self.seen.append(("unload", name))
        self.unloaded.set()
        if self.adapters.pop(name, None) is None:
            return self._error(404, f"The lora adapter '{name}' cannot be found.", "NotFoundError")
        return web.Response(text=f"Success: LoRA adapter '{name}' removed successfully.")

    async def _rpc(self, request: web.Request) -> web.Response:
        body = await request.json()
        assert body["method"] == "reload_weights"
        if "unfit" in body["kwargs"]["weights_path"]:
            return self._error(500, "EngineCore encountered an issue. See stack trace for the root cause.", "x")
        self.swap(body["kwargs"]["weights_path"])
        return web.json_response({"results": [None]})

    async def _reset(self, _request: web.Request) -> web.Response:
        self.seen.append(("reset", None))
        return web.Response()


class FakeSglang(FakeEngine):
    """SGLang with --enable-lora."""

    def management(self, app: web.Application) -> None:
        app.router.add_post("/load_lora_adapter", self._load)
        app.router.add_post("/unload_lora_adapter", self._unload)
        app.router.add_post("/update_weights_from_disk", self._update)

    def adapter_of(self, model: str) -> str | None:
        _, colon, name = model.partition(":")
        return (self.adapters[name] and name) if colon else None

    def unknown_model(self, model: str) -> web.Response:
        name = model.partition(":")[2]
        message = f"Got LoRA adapter that has never been loaded: {name}\nAll loaded adapters: dict_keys([])."
        error = {"object": "error", "message": message, "type": "BadRequestError", "param": None, "code": 400}
        return web.json_response(error, status=400)

    def _answer(self, success: bool, error: str | None = None) -> web.Response:
        body = {"success": success, "error_message": error, "loaded_adapters": dict(self.adapters)}
        return web.json_response(body, status=200 if success else 400)

    async def _load(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.seen.append(("load", body))
        name, path = body["lora_name"], body["lora_path"]
        if name in self.adapters:
            return self._answer(False, f"LoRA with name {name} already exists. Loaded LoRAs: dict_keys([])")
        if "unfit" in path:
            return self._answer(False, "LoRA adapter is not compatible with the current LoRA memory pool.")
        self.adapters[name] = path
        return self._answer(True)

    async def _unload(self, request: web.Request) -> web.Response:
        name = (await request.json())["lora_name"]
        self.seen.append(("unload", name))
        self.unloaded.set()
        if self.adapters.pop(name, None) is None:
            return self._answer(False, f"LoRA with name {name} does not exist.")
        return self._answer(True)

    async def _update(self, request: web.Request) -> web.Response:
        body = await request.json()
        if "unfit" in body["model_path"]:
            answer = {"success": False, "message": "Failed to get weights iterator", "num_paused_requests": 0}
            return web.json_response(answer, status=400)
        self.swap(body["model_path"])
        self.seen.append(("reset", None)) if body["flush_cache"] else None
        answer = {"success": True, "message": "Succeeded to update model weights.", "num_paused_requests": 0}
        return web.json_response(answer)
