"""The HTTP side: OpenAI's chat completions over the engine, plain and streamed, health and metrics beside them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import msgspec
from aiohttp import web

from libs.learning.engine.chat import ChatTokenizer, PromptError
from libs.learning.engine.engine import Engine
from libs.learning.engine.refused import ReleaseRefused
from libs.learning.engine.sequence import Release, Request
from libs.telemetry import metrics
from libs.telemetry.logs import get_logger
from services.policy.errors import ApiError, invalid
from services.policy.names import CAPTURE_HEADER, DEFAULT_SCENARIO, RELEASE_HEADER, SCENARIO_HEADER
from services.policy.request import Chat, parse_capture, parse_chat
from services.policy.respond import JSON, Choice, Responder, usage_of
from services.policy.scenarios import Scenarios
from services.policy.worker import EngineWorker, Live

_log = get_logger("policy.app")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(slots=True)
class Served:
    """One accepted request on its way to its answer."""

    chat: Chat
    release: Release
    prompt: Sequence[int]
    captured: int
    live: Live
    responder: Responder
    choices: list[Choice]
    started: float

    @property
    def usage(self) -> JSON:
        return usage_of(len(self.prompt), self.live.cached_tokens, self.choices)

    @property
    def tops(self) -> int | None:
        return (self.chat.top_logprobs or 0) if self.chat.logprobs else None


class PolicyApp:
    """Routes and what they need. `accepting` is switched off while the server drains."""

    def __init__(
        self,
        *,
        model_name: str,
        tokenizer: ChatTokenizer,
        engine: Engine,
        worker: EngineWorker,
        scenarios: Scenarios[Release],
        stop_ids: frozenset[int],
        default_max_tokens: int,
        ready: Callable[[], bool] = lambda: True,
    ) -> None:
        self._name, self._tokenizer, self._engine, self._worker = model_name, tokenizer, engine, worker
        self._scenarios, self._stop_ids, self._default_max = scenarios, stop_ids, default_max_tokens
        self._ready, self._created = ready, int(time.time())
        self.accepting = True

    def routes(self, app: web.Application) -> None:
        app.router.add_post("/v1/chat/completions", self.chat)
        app.router.add_get("/v1/models", self.models)
        app.router.add_get("/v1/models/{model}", self.model)

    async def check_ready(self) -> None:
        """Raises while requests would be refused."""
        if not self.accepting:
            raise RuntimeError("draining")
        if not self._ready():
            raise RuntimeError("policy.releases not read yet")

    # --- models --------------------------------------------------------------------------------------------------

    def _model(self) -> JSON:
        return {
            "id": self._name,
            "object": "model",
            "created": self._created,
            "owned_by": "clawback",
            "max_model_len": self._engine.shape.context,
            "releases": self._scenarios.serving(),
        }

    async def models(self, _request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [self._model()]})

    async def model(self, request: web.Request) -> web.Response:
        if request.match_info["model"] != self._name:
            error = ApiError(404, f"the model {request.match_info['model']!r} does not exist", code="model_not_found")
            return web.json_response(error.body(), status=404)
        return web.json_response(self._model())

    # --- chat completions ----------------------------------------------------------------------------------------

    async def chat(self, request: web.Request) -> web.StreamResponse:
        scenario = request.headers.get(SCENARIO_HEADER) or DEFAULT_SCENARIO
        outcome = "client_gone"
        started = time.perf_counter()
        try:
            served = await self._accept(request, scenario, started)
            with served.live:
                answer = await (self._stream if served.chat.stream else self._whole)(request, served)
            outcome = "completed" if all(c.finish in ("stop", "length") for c in served.choices) else "error"
            self._worker.observe(time.perf_counter() - started)
            return answer
        except ApiError as error:
            outcome = f"http_{error.status}"
            return web.json_response(error.body(), status=error.status, headers=error.headers())
        finally:
            metrics.POLICY_REQUESTS.labels(self._scenarios.label(scenario), outcome).inc()
            metrics.POLICY_REQUEST_SECONDS.observe(time.perf_counter() - started)

    async def _accept(self, request: web.Request, scenario: str, started: float) -> Served:
        """Check, render, pick the release and queue. Raises ApiError."""
        if not self.accepting:
            raise ApiError(503, "the server is shutting down", retry_after_seconds=5)
        if not self._ready():
            raise ApiError(503, "the server is still reading which releases serve", retry_after_seconds=2)
        chat = parse_chat(await request.read())
        captured = parse_capture(request.headers.get(CAPTURE_HEADER), self._engine.shape.vocab)
        prompt = await asyncio.to_thread(self._render, chat)
        limit = self._limit(chat, len(prompt))
        try:
            release = await self._scenarios.acquire(scenario)
        except ReleaseRefused as error:
            raise ApiError(503, f"the scenario's release cannot be read: {error}", retry_after_seconds=10) from error
        sampling = chat.sampling(max(captured, chat.top_logprobs or 0), self._engine.shape.vocab)
        live = self._worker.submit(
            [
                Request(
                    prompt=prompt,
                    release=release,
                    queue=scenario,
                    max_new_tokens=limit,
                    sampling=sampling,
                    stops=chat.stops,
                    stop_ids=self._stop_ids,
                    seed=None if chat.seed is None else f"{chat.seed}:{index}",
                )
                for index in range(chat.n or 1)
            ]
        )
        responder = Responder(self._name, release.release_id, self._tokenizer, self._stop_ids)
        choices = [Choice(index) for index in range(chat.n or 1)]
        return Served(chat, release, prompt, captured, live, responder, choices, started)

    def _render(self, chat: Chat) -> list[int]:
        tools = chat.tools if chat.tool_choice != "none" else None
        try:
            return self._tokenizer.prompt_ids([msgspec.to_builtins(m) for m in chat.messages], tools)
        except PromptError as error:
            raise invalid(error.field, str(error)) from error

    def _limit(self, chat: Chat, prompt_tokens: int) -> int:
        """New tokens allowed: what was asked for, cut to what the context leaves. Raises ApiError without any."""
        context = self._engine.shape.context
        left = context - prompt_tokens
        if left < 1:
            raise invalid(
                "messages",
                f"This model's maximum context length is {context} tokens. However, your messages resulted in "
                f"{prompt_tokens} tokens. Please reduce the length of the messages.",
                code="context_length_exceeded",
            )
        limit = min(left, chat.limit or self._default_max)
        if not self._engine.fits(prompt_tokens, limit):
            raise invalid("max_tokens", f"{prompt_tokens} + {limit} tokens exceed this server's key/value memory")
        return limit

    async def _whole(self, _request: web.Request, served: Served) -> web.Response:
        async for index, step in served.live:
            self._count(served, index)
            served.choices[index].take(step)
        self._finished(served)
        body = served.responder.whole(served.choices, served.usage, served.tops)
        if served.captured:
            body["clawback"] = served.responder.capture(served.prompt, served.choices[0], served.captured)
        return web.Response(
            body=msgspec.json.encode(body),
            content_type="application/json",
            headers={RELEASE_HEADER: served.release.release_id},
        )

    async def _stream(self, request: web.Request, served: Served) -> web.StreamResponse:
        response = web.StreamResponse(
            headers={
                "Content-Type": "text/event-stream; charset=utf-8",
                "Cache-Control": "no-cache",
                RELEASE_HEADER: served.release.release_id,
            }
        )
        async for index, step in served.live:
            self._count(served, index)
            choice, respond = served.choices[index], served.responder
            if step.finish == "error" and not response.prepared:
                raise ApiError(500, "the engine could not compute this response")
            out: list[JSON] = []
            if not choice.drawn:
                out.append(respond.chunk(index, {"role": "assistant", "content": ""}))
            choice.take(step)
            listed = None
            if served.tops is not None and step.drawn is not None:
                listed = respond.logprobs([step.drawn], served.tops)
            if step.text or (listed and listed["content"]):
                out.append(respond.chunk(index, {"content": step.text}, logprobs=listed))
            if step.finish == "error":
                out.append(ApiError(500, "the engine could not compute the rest of this response").body())
            elif step.finish is not None:
                out.append(respond.chunk(index, {}, finish=step.finish))
            if not response.prepared:
                await response.prepare(request)
            if out:
                await response.write(b"".join(_event(chunk) for chunk in out))
        if all(choice.finish != "error" for choice in served.choices):
            await response.write(self._ending(served))
        self._tokens(served)
        await response.write_eof()
        return response

    def _ending(self, served: Served) -> bytes:
        """The last events: usage where it was asked for, the capture right before the end mark."""
        out: list[bytes] = []
        if served.chat.include_usage:
            out.append(_event(served.responder.usage_chunk(served.usage)))
        if served.captured:
            value = served.responder.capture(served.prompt, served.choices[0], served.captured)
            out.append(_event({"object": "clawback.capture", "clawback": value}))
        return b"".join((*out, b"data: [DONE]\n\n"))

    def _finished(self, served: Served) -> None:
        self._tokens(served)
        if any(choice.finish == "error" for choice in served.choices):
            raise ApiError(500, "the engine could not compute this response")

    def _count(self, served: Served, index: int) -> None:
        if not any(choice.drawn for choice in served.choices):
            metrics.POLICY_FIRST_TOKEN_SECONDS.observe(time.perf_counter() - served.started)

    def _tokens(self, served: Served) -> None:
        usage = served.usage
        metrics.POLICY_TOKENS.labels("prompt").inc(usage["prompt_tokens"])
        metrics.POLICY_TOKENS.labels("cached").inc(usage["prompt_tokens_details"]["cached_tokens"])
        metrics.POLICY_TOKENS.labels("reply").inc(usage["completion_tokens"])


def _event(value: JSON) -> bytes:
    return b"data: " + msgspec.json.encode(value) + b"\n\n"
