"""What vLLM and SGLang call the steps of a release. Both keep running requests on the adapter they began with.

vLLM    POST /v1/load_lora_adapter, /v1/unload_lora_adapter (VLLM_ALLOW_RUNTIME_LORA_UPDATING=True, --enable-lora);
        whole weights: POST /collective_rpc reload_weights, then /reset_prefix_cache (VLLM_SERVER_DEV_MODE=1)
SGLang  POST /load_lora_adapter, /unload_lora_adapter (--enable-lora); whole weights: POST /update_weights_from_disk

Sources: vLLM `entrypoints/serve/lora`, `entrypoints/openai/models/serving.py`, `entrypoints/serve/dev`; SGLang
`entrypoints/http_server.py`, `managers/io_struct.py`.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from typing import Any

import aiohttp

from libs.learning.engine.refused import ReleaseRefused


class ExternalEngine(ABC):
    """One server. `call` is shared; what to call differs."""

    def __init__(self, session: aiohttp.ClientSession, timeout_seconds: float) -> None:
        self._session = session
        self._timeout = aiohttp.ClientTimeout(total=timeout_seconds)
        self._base_model: str | None = None

    async def base_model(self) -> str:
        """The name under which the server lists its base model. Raises ReleaseRefused while it does not answer."""
        if self._base_model is None:
            _, body = await self._call("GET", "/v1/models", None)
            self._base_model = str(body["data"][0]["id"])
        return self._base_model

    async def ping(self) -> None:
        """Raises ReleaseRefused while the server does not say that it is healthy."""
        status, body = await self._call("GET", "/health", None)
        if status != 200:
            raise self._refuse("/health", status, body)

    @abstractmethod
    async def load(self, name: str, path: str) -> None:
        """Make the adapter in `path` (as the server sees it) available as `name`. Loading it again is fine."""

    @abstractmethod
    async def unload(self, name: str) -> None:
        """Forget an adapter. One that is not there is fine."""

    @abstractmethod
    async def reload(self, path: str) -> None:
        """Replace the whole weights and drop every cached prompt. Nothing may run meanwhile."""

    @abstractmethod
    def model_of(self, base: str, name: str) -> str:
        """What a request's `model` must say to get the adapter."""

    async def _call(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        """(status, parsed body). Raises ReleaseRefused when there is no answer."""
        try:
            async with self._session.request(method, path, json=body, timeout=self._timeout) as answer:
                text = await answer.text()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ReleaseRefused(f"the engine does not answer {path}: {error!r}", reason="engine_away") from error
        try:
            return answer.status, json.loads(text)
        except ValueError:
            return answer.status, text

    @staticmethod
    def _refuse(what: str, status: int, body: Any) -> ReleaseRefused:
        return ReleaseRefused(f"the engine refused {what} with status {status}: {body}", reason="engine_refused")


class VllmEngine(ExternalEngine):
    """Answers of load and unload are plain text on success and {"error": {...}} otherwise."""

    async def load(self, name: str, path: str) -> None:
        status, body = await self._call("POST", "/v1/load_lora_adapter", {"lora_name": name, "lora_path": path})
        if status != 200 and "already been loaded" not in str(body):
            raise self._refuse(f"adapter {name}", status, body)

    async def unload(self, name: str) -> None:
        status, body = await self._call("POST", "/v1/unload_lora_adapter", {"lora_name": name})
        if status not in (200, 404):
            raise self._refuse(f"to unload {name}", status, body)

    async def reload(self, path: str) -> None:
        order = {"method": "reload_weights", "kwargs": {"weights_path": path, "is_checkpoint_format": True}}
        for step, body in (("/collective_rpc", order), ("/reset_prefix_cache", None)):
            status, answer = await self._call("POST", step, body)
            if status != 200:
                raise self._refuse(f"{step} for {path}", status, answer)

    def model_of(self, base: str, name: str) -> str:
        return name


class SglangEngine(ExternalEngine):
    """Answers are {"success", "error_message", "loaded_adapters"}, and {"success", "message"} for whole weights."""

    async def load(self, name: str, path: str) -> None:
        status, body = await self._call("POST", "/load_lora_adapter", {"lora_name": name, "lora_path": path})
        loaded = isinstance(body, dict) and (body.get("success") or name in (body.get("loaded_adapters") or {}))
        if not loaded and "already" not in str(body):
            raise self._refuse(f"adapter {name}", status, body)

    async def unload(self, name: str) -> None:
        status, body = await self._call("POST", "/unload_lora_adapter", {"lora_name": name})
        there = isinstance(body, dict) and name in (body.get("loaded_adapters") or {})
        if status != 200 and there:
            raise self._refuse(f"to unload {name}", status, body)

    async def reload(self, path: str) -> None:
        order = {"model_path": path, "flush_cache": True, "abort_all_requests": False}
        status, body = await self._call("POST", "/update_weights_from_disk", order)
        if status != 200 or not (isinstance(body, dict) and body.get("success")):
            raise self._refuse(f"the weights in {path}", status, body)

    def model_of(self, base: str, name: str) -> str:
        return f"{base}:{name}"


ENGINES: dict[str, type[ExternalEngine]] = {"vllm": VllmEngine, "sglang": SglangEngine}
