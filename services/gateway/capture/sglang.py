"""Capture from SGLang's chat completions, where it gives one: not streamed.

Asked for with `logprobs`, `top_logprobs`, `return_meta_info` and `return_prompt_token_ids`; `meta_info` then holds
`output_token_logprobs` [log-prob, id, text] and `output_top_logprobs`. SGLang refuses both fields when streaming.
Source: SGLang's `entrypoints/openai/protocol.py` and `serving_chat.py`.
"""

from __future__ import annotations

from typing import Any

from libs.contracts import Capture
from libs.contracts.policy_releases import release_number
from services.gateway.capture.ask import Ask
from services.gateway.capture.vllm import build
from services.gateway.jsonedit import Action, append_members, edit_body

_TOP: dict[str, Action] = {}


class SglangCapture:
    """One call's request with the capture asked for, and the filter of its response."""

    def __init__(self, ask: Ask, body: bytes, top_k: int) -> None:
        self._k = top_k
        self.body = append_members(
            body,
            {"logprobs": True, "top_logprobs": top_k, "return_meta_info": True, "return_prompt_token_ids": True},
        )
        # SGLang leaves these two out of answers to calls that did not ask for them, and writes logprobs as null.
        self._choice: dict[str, Action] = {"logprobs": "null"}
        if not ask.return_meta_info:
            self._choice["meta_info"] = "remove"
        if not ask.return_prompt_token_ids:
            self._choice["prompt_token_ids"] = "remove"
        self.capture: Capture | None = None
        self.release_id: str | None = None
        self.broken = False

    def strip(self, body: bytes) -> bytes:
        """A whole response as the client would have got it."""
        try:
            edited, outer = edit_body(body, _TOP, self._choice)
        except ValueError:
            return body
        try:
            self._take(outer)
        except (ValueError, KeyError, TypeError, IndexError, AttributeError, OverflowError):
            self.broken = True
        return edited

    def feed(self, chunk: bytes) -> bytes:
        return chunk

    def close(self) -> bytes:
        return b""

    def _take(self, outer: dict[str, Any]) -> None:
        model = str(outer.get("model", ""))
        # With LoRA the model is written as "base:adapter"; adapters are loaded under the name of their release.
        release = model.rpartition(":")[2]
        self.release_id = release if release_number(release) else None
        choice = outer["choices"][0]
        meta = choice["meta_info"]
        steps = [
            (int(sampled[1]), float(sampled[0]), [(float(c[0]), int(c[1])) for c in candidates])
            for sampled, candidates in zip(meta["output_token_logprobs"], meta["output_top_logprobs"], strict=True)
        ]
        self.capture = build(choice["prompt_token_ids"], [s[0] for s in steps], steps, self._k)
