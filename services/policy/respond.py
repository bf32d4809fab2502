"""Response bodies: chat completions whole and in chunks, usage, log-probs, and the capture beside them."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from libs.contracts import Array, Capture
from libs.learning.engine.chat import ChatTokenizer
from libs.learning.engine.sampling import Drawn
from libs.learning.engine.sequence import Step

JSON = dict[str, Any]


@dataclass(slots=True)
class Choice:
    """One choice as it grows. Special tokens count as sampled and are captured, though they have no text."""

    index: int
    text: list[str] = field(default_factory=list)
    drawn: list[Drawn] = field(default_factory=list)
    finish: str | None = None

    def take(self, step: Step) -> None:
        if step.drawn is not None:
            self.drawn.append(step.drawn)
        self.text.append(step.text)
        self.finish = step.finish or self.finish

    @property
    def content(self) -> str:
        return "".join(self.text)


class Responder:
    """Makes the bodies of one response."""

    def __init__(self, model: str, release_id: str, tokenizer: ChatTokenizer, stop_ids: frozenset[int]) -> None:
        self._head: JSON = {"id": f"chatcmpl-{uuid.uuid4().hex}", "object": "", "created": int(time.time())}
        self._head |= {"model": model, "system_fingerprint": release_id}
        self._release_id, self._tokenizer, self._stop_ids = release_id, tokenizer, stop_ids

    def whole(self, choices: Sequence[Choice], usage: JSON, tops: int | None) -> JSON:
        """`tops` is None without logprobs, else how many alternatives each token lists."""
        listed = [
            {
                "index": choice.index,
                "message": {"role": "assistant", "content": choice.content, "refusal": None},
                "logprobs": None if tops is None else self.logprobs(choice.drawn, tops),
                "finish_reason": choice.finish,
            }
            for choice in choices
        ]
        return {**self._head, "object": "chat.completion", "choices": listed, "usage": usage}

    def chunk(self, index: int, delta: JSON, finish: str | None = None, logprobs: JSON | None = None) -> JSON:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
        return {**self._head, "object": "chat.completion.chunk", "choices": [choice]}

    def usage_chunk(self, usage: JSON) -> JSON:
        return {**self._head, "object": "chat.completion.chunk", "choices": [], "usage": usage}

    def logprobs(self, drawn: Sequence[Drawn], tops: int) -> JSON:
        """Tokens that end the reply are left out: they are no part of the content."""
        return {"content": [self._listed(d, tops) for d in drawn if d.token not in self._stop_ids], "refusal": None}

    def _listed(self, drawn: Drawn, tops: int) -> JSON:
        pairs = list(zip(drawn.top_ids[:tops], drawn.top_logprobs[:tops], strict=True))
        return {**self._entry(drawn.token, drawn.logprob), "top_logprobs": [self._entry(*pair) for pair in pairs]}

    def _entry(self, token: int, logprob: float) -> JSON:
        text = self._tokenizer.token(token)
        return {"token": text, "logprob": max(logprob, -9999.0), "bytes": list(text.encode())}

    def capture(self, prompt: Sequence[int], choice: Choice, k: int) -> JSON:
        """The `clawback` value: the release and everything that was sampled, as libs.contracts.Capture has it."""
        rows = len(choice.drawn)
        capture = Capture(
            prompt_token_ids=Array.ints(prompt),
            response_token_ids=Array.ints([d.token for d in choice.drawn]),
            logprobs=Array.floats([d.logprob for d in choice.drawn]),
            topk_ids=Array.ints([i for d in choice.drawn for i in d.top_ids[:k]], [rows, k]),
            topk_logprobs=Array.floats([p for d in choice.drawn for p in d.top_logprobs[:k]], [rows, k]),
        )
        return {"release_id": self._release_id, "capture": msgspec.to_builtins(capture)}


def usage_of(prompt_tokens: int, cached_tokens: int, choices: Sequence[Choice]) -> JSON:
    """Token counts; completion tokens are all that were sampled, the end token too."""
    completion = sum(len(choice.drawn) for choice in choices)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion,
        "total_tokens": prompt_tokens + completion,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
    }
