"""The HTTP side: OpenAI's completions over the engine, plain and streamed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
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
from services.policy.request import Chat, Text, parse_capture, parse_chat, parse_text
from services.policy.respond import JSON, ChatResponder, Choice, Responder, TextResponder, usage_of
from services.policy.scenarios import Scenarios
from services.policy.worker import EngineWorker, Live

_log = get_logger("policy.app")
Read = Callable[[bytes], tuple[Chat | Text, list[list[int]]]]


@dataclass(slots=True)
class Served:
    """One accepted request on its way to its answer."""

    asked: Chat | Text
    release: Release
    prompts: list[list[int]]
    captured: int
    live: Live
    responder: Responder
    choices: list[Choice]
    started: float

    @property
    def usage(self) -> JSON:
        return usage_of(sum(map(len, self.prompts)), self.live.cached_tokens, self.choices)

    def capture(self) -> JSON:
        return self.responder.capture(self.prompts[0], self.choices[0], self.captured)


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
        app.router.add_post("/v1/completions", self.text)
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

    # --- completions ---------------------------------------------------------------------------------------------

    async def chat(self, request: web.Request) -> web.StreamResponse:
        return await self._serve(request, self._chat_prompt, ChatResponder)

    async def text(self, request: web.Request) -> web.StreamResponse:
        return await self._serve(request, self._text_prompts, TextResponder)

    async def _serve(self, request: web.Request, read: Read, kind: type[Responder]) -> web.StreamResponse:
        scenario = request.headers.get(SCENARIO_HEADER) or DEFAULT_SCENARIO
        outcome = "client_gone"
        started = time.perf_counter()
        try:
            served = await self._accept(request, scenario, started, read, kind)
            with served.live:
                answer = await (self._stream if served.asked.stream else self._whole)(request, served)
            outcome = "completed" if all(c.finish in ("stop", "length") for c in served.choices) else "error"
            self._worker.observe(time.perf_counter() - started)
            return answer
        except ApiError as error:
            outcome = f"http_{error.status}"
            return web.json_response(error.body(), status=error.status, headers=error.headers())
        finally:
            metrics.POLICY_REQUESTS.labels(self._scenarios.label(scenario), outcome).inc()
            metrics.POLICY_REQUEST_SECONDS.observe(time.perf_counter() - started)

    async def _accept(
        self, request: web.Request, scenario: str, started: float, read: Read, kind: type[Responder]
    ) -> Served:
        """Check, render, pick the release and queue. Raises ApiError."""
        if not self.accepting:
            raise ApiError(503, "the server is shutting down", retry_after_seconds=5)
        if not self._ready():
            raise ApiError(503, "the server is still reading which releases serve", retry_after_seconds=2)
        body = await request.read()
        captured = parse_capture(request.headers.get(CAPTURE_HEADER), self._engine.shape.vocab)
        asked, prompts = await asyncio.to_thread(read, body)
        sampling = asked.sampling(max(captured, asked.tops or 0), self._engine.shape.vocab)
        limits = [self._limit(asked, len(prompt)) for prompt in prompts]
        try:
            release = await self._scenarios.acquire(scenario)
        except ReleaseRefused as error:
            raise ApiError(503, f"the scenario's release cannot be read: {error}", retry_after_seconds=10) from error
        requests = [
            Request(
                prompt=prompt,
                release=release,
                queue=scenario,
                max_new_tokens=limit,
                sampling=sampling,
                stops=asked.stops,
                stop_ids=self._stop_ids,
                seed=None if asked.seed is None else f"{asked.seed}:{number}",
            )
            for prompt, limit in zip(prompts, limits, strict=True)
            for number in range(asked.n or 1)
        ]
        live = self._worker.submit(requests)
        responder = kind(self._name, release.release_id, self._tokenizer, self._stop_ids)
        choices = [Choice(index) for index in range(len(requests))]
        return Served(asked, release, prompts, captured, live, responder, choices, started)

    def _chat_prompt(self, body: bytes) -> tuple[Chat, list[list[int]]]:
        chat = parse_chat(body)
        tools = chat.tools if chat.tool_choice != "none" else None
        try:
            return chat, [self._tokenizer.prompt_ids([msgspec.to_builtins(m) for m in chat.messages], tools)]
        except PromptError as error:
            raise invalid(error.field, str(error)) from error

    def _text_prompts(self, body: bytes) -> tuple[Text, list[list[int]]]:
        text, vocab = parse_text(body), self._engine.shape.vocab
        prompts = [self._tokenizer.encode(p) if isinstance(p, str) else p for p in text.prompts()]
        if any(not 0 <= token < vocab for prompt in prompts for token in prompt):
            raise invalid("prompt", f"prompt: token ids must be from 0 to {vocab - 1}")
        return text, prompts

    def _limit(self, asked: Chat | Text, prompt_tokens: int) -> int:
        """New tokens allowed: what was asked for, cut to what the context leaves. Raises ApiError without any."""
        context = self._engine.shape.context
        left = context - prompt_tokens
        if left < 1:
            raise invalid(
                "messages" if isinstance(asked, Chat) else "prompt",
                f"This model's maximum context length is {context} tokens. However, your messages resulted in "
                f"{prompt_tokens} tokens. Please reduce the length of the messages.",
                code="context_length_exceeded",
            )
        limit = min(left, asked.limit or self._default_max)
        if not self._engine.fits(prompt_tokens, limit):
            raise invalid("max_tokens", f"{prompt_tokens} + {limit} tokens exceed this server's key/value memory")
        return limit

    async def _whole(self, _request: web.Request, served: Served) -> web.Response:
        async for index, step in served.live:
            self._count(served, index)
            served.choices[index].take(step)
        self._finished(served)
        body = served.responder.whole(served.choices, served.usage, served.asked.tops)
        if served.captured:
            body["clawback"] = served.capture()
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
                out += respond.opening(index)
            choice.take(step)
            out += respond.piece(index, step.text, step.drawn, served.asked.tops)
            if step.finish == "error":
                out.append(ApiError(500, "the engine could not compute the rest of this response").body())
            elif step.finish is not None:
                out.append(respond.closing(index, step.finish))
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
        if served.asked.include_usage:
            out.append(_event(served.responder.usage_chunk(served.usage)))
        if served.captured:
            out.append(_event({"object": "clawback.capture", "clawback": served.capture()}))
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
