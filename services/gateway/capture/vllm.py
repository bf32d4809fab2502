"""Capture from vLLM's chat completions.

Asked for with `return_token_ids` (vLLM >= 0.10.2), `logprobs`, `top_logprobs` and `return_tokens_as_token_ids`, which
writes tokens as "token_id:<id>". Source: vLLM's `entrypoints/openai/chat_completion/protocol.py` and `serving.py`.

vLLM lists the sampled token first and cuts the list at `top_logprobs`, so a sample outside the top K would push the
K-th candidate out: one more is asked for and the K best are kept. Run vLLM with `--logprobs-mode raw_logprobs` (its
default), so that the values are those of temperature 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from libs.contracts import Array, Capture
from libs.contracts.policy_releases import release_number
from services.gateway.capture.ask import Ask
from services.gateway.capture.lines import DataLines
from services.gateway.jsonedit import Action, append_members, edit_body

_PREFIX = "token_id:"
_MOST_LOGPROBS = 20  # vLLM's default --max-logprobs


class VllmCapture:
    """One call's request with the capture asked for, and the filter of its response."""

    def __init__(self, ask: Ask, body: bytes, top_k: int) -> None:
        self._k = min(top_k, _MOST_LOGPROBS - 1)
        self.body = append_members(
            body,
            {
                "logprobs": True,
                "top_logprobs": self._k + 1,
                "return_token_ids": True,
                "return_tokens_as_token_ids": True,
            },
        )
        # A client that asked for the ids itself keeps them.
        self._top: dict[str, Action] = {} if ask.return_token_ids else {"prompt_token_ids": "null"}
        self._choice: dict[str, Action] = {"logprobs": "null"}
        if not ask.return_token_ids:
            self._choice["token_ids"] = "null"
        self._lines = DataLines(self._rewrite)
        self._prompt: list[int] = []
        self._ids: list[int] = []
        self._steps: list[dict[str, Any]] = []
        self.release_id: str | None = None
        self.broken = False

    def strip(self, body: bytes) -> bytes:
        """A whole response as the client would have got it."""
        return self._rewrite(body)

    def feed(self, chunk: bytes) -> bytes:
        return self._lines.feed(chunk)

    def close(self) -> bytes:
        return self._lines.close()

    @property
    def capture(self) -> Capture | None:
        """What was captured; None (and `broken`) when the pieces do not fit together."""
        self.broken = self.broken or self._lines.overlong
        if not self._ids or self.broken:
            return None
        try:
            return build(self._prompt, self._ids, [_step(s) for s in self._steps], self._k)
        except (ValueError, KeyError, TypeError, OverflowError):
            self.broken = True
            return None

    def _rewrite(self, payload: bytes) -> bytes:
        try:
            edited, outer = edit_body(payload, self._top, self._choice)
        except ValueError:
            return payload
        try:
            self._take(outer)
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
            self.broken = True
        return edited

    def _take(self, outer: dict[str, Any]) -> None:
        if self.release_id is None and release_number(str(outer.get("model", ""))):
            self.release_id = outer["model"]  # adapters are loaded under the name of their release
        if isinstance(outer.get("prompt_token_ids"), list):
            self._prompt = outer["prompt_token_ids"]
        for choice in outer.get("choices") or ():
            self._ids += choice.get("token_ids") or ()
            self._steps += (choice.get("logprobs") or {}).get("content") or ()


Step = tuple[int, float, Sequence[tuple[float, int]]]  # sampled id, its log-prob, candidates (log-prob, id)


def build(prompt: list[int], ids: list[int], steps: Sequence[Step], k: int) -> Capture:
    """A Capture of R = len(ids) tokens. Raises ValueError when the engine's lists do not belong together."""
    if not prompt or [s[0] for s in steps] != ids:
        raise ValueError("token ids and log-probs do not belong together")
    best = [sorted(candidates, reverse=True)[:k] for _, _, candidates in steps]
    if any(len(row) != k for row in best):
        raise ValueError(f"fewer than {k} candidates")
    shape = [len(ids), k]
    return Capture(
        prompt_token_ids=Array.ints(prompt),
        response_token_ids=Array.ints(ids),
        logprobs=Array.floats([s[1] for s in steps]),
        topk_ids=Array.ints([i for row in best for _, i in row], shape),
        topk_logprobs=Array.floats([p for row in best for p, _ in row], shape),
    )


def _step(content: dict[str, Any]) -> Step:
    candidates = [(float(c["logprob"]), _id(c["token"])) for c in content["top_logprobs"]]
    return _id(content["token"]), float(content["logprob"]), candidates


def _id(token: str) -> int:
    if not token.startswith(_PREFIX):
        raise ValueError("the engine does not write tokens as ids")
    return int(token[len(_PREFIX) :])
