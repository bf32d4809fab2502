"""The PRM judge: a model behind any OpenAI-compatible endpoint, deployed apart from the policy that it grades.

What a server does not take (a JSON schema, a seed, max_tokens of a reasoning model) is learned from its 400 answers
and left out from then on. Every failure is an abstention with a reason; `outage` marks those that say nothing about the
turn itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from libs.feedback.answers import read_completion
from libs.feedback.judge import Ballot, Question
from libs.feedback.prompts import PROMPT_VERSION, SCHEMA, render
from libs.feedback.transport import Transport, TransportFailure

_OPTIONAL = ("response_format", "seed", "temperature", "top_p", "max_tokens")
# The request itself was refused; every other status says something about the server, the key or the address.
_ABOUT_THE_REQUEST = frozenset({400, 413, 422})


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling parameters of a vote. The seed is `seed` plus the vote's number, so that votes differ and repeat."""

    temperature: float = 0.6
    top_p: float = 0.95
    max_tokens: int = 1024
    seed: int = 0


@dataclass(slots=True)
class PrmJudge:
    """Asks `model` over `transport`. Holds what it has learned about the server, nothing about turns."""

    transport: Transport
    model: str
    sampling: Sampling = field(default_factory=Sampling)
    call_timeout_seconds: float = 30.0
    max_prompt_chars: int = 24_000
    structured: Literal["auto", "on", "off"] = "auto"
    name: str = "prm"
    deterministic: bool = False
    _refused: set[str] = field(default_factory=set)

    @property
    def version(self) -> str:
        s = self.sampling
        return f"{PROMPT_VERSION}:{self.model}:t{s.temperature}:p{s.top_p}:n{s.max_tokens}:c{self.max_prompt_chars}"

    async def vote(self, question: Question, index: int) -> Ballot:
        """One call, repeated only when the server names a parameter that it does not take."""
        messages, nonce = render(question, max_chars=self.max_prompt_chars, index=index)
        for _ in range(len(_OPTIONAL) + 1):
            request = self._request(messages, index)
            try:
                status, answer = await self.transport.post(msgspec.json.encode(request), self.call_timeout_seconds)
            except TransportFailure as failure:
                return Ballot(abstained=failure.reason, outage=failure.reason != "too_large")
            if status == 200:
                return read_completion(answer, nonce)
            if status not in _ABOUT_THE_REQUEST or not self._learn(answer, request):
                return Ballot(abstained=f"http_{status}", outage=status not in _ABOUT_THE_REQUEST)
        return Ballot(abstained="http_400")

    def _request(self, messages: list[dict[str, str]], index: int) -> dict[str, Any]:
        s = self.sampling
        request: dict[str, Any] = {"model": self.model, "messages": messages, "stream": False}
        optional: dict[str, Any] = {
            "temperature": s.temperature,
            "top_p": s.top_p,
            "max_tokens": s.max_tokens,
            "seed": s.seed + index,
        }
        if self.structured != "off":
            schema = {"name": "judgements", "strict": True, "schema": SCHEMA}
            optional["response_format"] = {"type": "json_schema", "json_schema": schema}
        request |= {key: value for key, value in optional.items() if key not in self._refused}
        if "max_tokens" in self._refused:
            request["max_completion_tokens"] = s.max_tokens
        return request

    def _learn(self, answer: bytes, request: dict[str, Any]) -> bool:
        """Note the parameter of this request that the server refuses; False when it names none that can be left out.

        Another call may have learnt of it meanwhile: this one is repeated without it all the same.
        """
        said = answer[:4000].decode("utf-8", "replace")
        for name in _OPTIONAL:
            named = name in said or (name == "response_format" and ("json_schema" in said or "guided" in said))
            if named and name in request and not (name == "response_format" and self.structured == "on"):
                self._refused.add(name)
                return True
        return False
