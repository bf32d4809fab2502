"""Response bodies: chat completions whole and in chunks, usage, log-probs, and the capture beside them."""

from __future__ import annotations

import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from libs.contracts import Array, Capture
from libs.learning.engine.chat import ChatTokenizer
from libs.learning.engine.sampling import Drawn
from libs.learning.engine.sequence import Step

JSON = dict[str, Any]
_LEAST = -9999.0  # JSON has no infinity


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


class Responder(ABC):
    """Makes the bodies of one response. The two forms differ in how they show a choice and its log-probs."""

    whole_object: str
    chunk_object: str
    id_prefix: str

    def __init__(self, model: str, release_id: str, tokenizer: ChatTokenizer, stop_ids: frozenset[int]) -> None:
        self._head: JSON = {"id": f"{self.id_prefix}-{uuid.uuid4().hex}", "object": "", "created": int(time.time())}
        self._head |= {"model": model, "system_fingerprint": release_id}
        self._release_id, self._tokenizer, self._stop_ids = release_id, tokenizer, stop_ids

    @abstractmethod
    def choice(self, choice: Choice, tops: int | None) -> JSON:
        """A finished choice. `tops` is None without logprobs, else how many alternatives each token lists."""

    @abstractmethod
    def opening(self, index: int) -> list[JSON]:
        """Chunks that come before a choice's first text."""

    @abstractmethod
    def piece(self, index: int, text: str, drawn: Drawn | None, tops: int | None) -> list[JSON]:
        """Chunks for new text and its token; none when there is nothing to show."""

    @abstractmethod
    def closing(self, index: int, finish: str) -> JSON:
        """The chunk that ends a choice."""

    def whole(self, choices: Sequence[Choice], usage: JSON, tops: int | None) -> JSON:
        listed = [self.choice(choice, tops) for choice in choices]
        return {**self._head, "object": self.whole_object, "choices": listed, "usage": usage}

    def usage_chunk(self, usage: JSON) -> JSON:
        return {**self._head, "object": self.chunk_object, "choices": [], "usage": usage}

    def _chunk(self, choice: JSON) -> JSON:
        return {**self._head, "object": self.chunk_object, "choices": [choice]}

    def _shown(self, drawn: Sequence[Drawn]) -> list[Drawn]:
        """Without the tokens that end the reply: they are no part of the content."""
        return [d for d in drawn if d.token not in self._stop_ids]

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


class ChatResponder(Responder):
    """/v1/chat/completions."""

    whole_object, chunk_object, id_prefix = "chat.completion", "chat.completion.chunk", "chatcmpl"

    def choice(self, choice: Choice, tops: int | None) -> JSON:
        return {
            "index": choice.index,
            "message": {"role": "assistant", "content": choice.content, "refusal": None},
            "logprobs": None if tops is None else self._logprobs(choice.drawn, tops),
            "finish_reason": choice.finish,
        }

    def opening(self, index: int) -> list[JSON]:
        return [self._delta(index, {"role": "assistant", "content": ""})]

    def piece(self, index: int, text: str, drawn: Drawn | None, tops: int | None) -> list[JSON]:
        listed = None if tops is None or drawn is None else self._logprobs([drawn], tops)
        if not text and not (listed and listed["content"]):
            return []
        return [self._delta(index, {"content": text}, logprobs=listed)]

    def closing(self, index: int, finish: str) -> JSON:
        return self._delta(index, {}, finish=finish)

    def _delta(self, index: int, delta: JSON, finish: str | None = None, logprobs: JSON | None = None) -> JSON:
        return self._chunk({"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish})

    def _logprobs(self, drawn: Sequence[Drawn], tops: int) -> JSON:
        return {"content": [self._listed(d, tops) for d in self._shown(drawn)], "refusal": None}

    def _listed(self, drawn: Drawn, tops: int) -> JSON:
        pairs = list(zip(drawn.top_ids[:tops], drawn.top_logprobs[:tops], strict=True))
        return {**self._entry(drawn.token, drawn.logprob), "top_logprobs": [self._entry(*pair) for pair in pairs]}

    def _entry(self, token: int, logprob: float) -> JSON:
        text = self._tokenizer.token(token)
        return {"token": text, "logprob": max(logprob, _LEAST), "bytes": list(text.encode())}


class TextResponder(Responder):
    """/v1/completions, the older form: plain text and log-probs as parallel lists."""

    whole_object, chunk_object, id_prefix = "text_completion", "text_completion", "cmpl"

    def __init__(self, model: str, release_id: str, tokenizer: ChatTokenizer, stop_ids: frozenset[int]) -> None:
        super().__init__(model, release_id, tokenizer, stop_ids)
        self._offsets: dict[int, int] = {}  # characters listed so far, by choice

    def choice(self, choice: Choice, tops: int | None) -> JSON:
        listed = None if tops is None else self._logprobs(choice.index, choice.drawn, tops)
        return {"index": choice.index, "text": choice.content, "logprobs": listed, "finish_reason": choice.finish}

    def opening(self, index: int) -> list[JSON]:
        return []

    def piece(self, index: int, text: str, drawn: Drawn | None, tops: int | None) -> list[JSON]:
        listed = None if tops is None or drawn is None else self._logprobs(index, [drawn], tops)
        if not text and not (listed and listed["tokens"]):
            return []
        return [self._chunk({"index": index, "text": text, "logprobs": listed, "finish_reason": None})]

    def closing(self, index: int, finish: str) -> JSON:
        return self._chunk({"index": index, "text": "", "logprobs": None, "finish_reason": finish})

    def _logprobs(self, index: int, drawn: Sequence[Drawn], tops: int) -> JSON:
        shown = self._shown(drawn)
        texts = [self._tokenizer.token(d.token) for d in shown]
        offsets = []
        for text in texts:
            offsets.append(self._offsets.get(index, 0))
            self._offsets[index] = offsets[-1] + len(text)
        return {
            "tokens": texts,
            "token_logprobs": [max(d.logprob, _LEAST) for d in shown],
            "top_logprobs": [self._tops(d, tops) for d in shown] if tops else None,
            "text_offset": offsets,
        }

    def _tops(self, drawn: Drawn, tops: int) -> JSON:
        pairs = zip(drawn.top_ids[:tops], drawn.top_logprobs[:tops], strict=True)
        return {self._tokenizer.token(token): max(logprob, _LEAST) for token, logprob in pairs}


def usage_of(prompt_tokens: int, cached_tokens: int, choices: Sequence[Choice]) -> JSON:
    """Token counts; completion tokens are all that were sampled, the end token too."""
    completion = sum(len(choice.drawn) for choice in choices)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion,
        "total_tokens": prompt_tokens + completion,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
    }
