"""OpenAI text completions: `text_completion` events to one `text_completion`."""

from __future__ import annotations

from typing import Any

from libs.dialects.assembly.base import EventAssembler, Json, merge


class CompletionAssembler(EventAssembler):
    """Takes the chunks of a streamed text completion, any number of choices."""

    def __init__(self) -> None:
        super().__init__()
        self._top: Json = {}
        self._choices: dict[int, Json] = {}

    def take(self, name: str, payload: Json) -> None:
        if "error" in payload and "choices" not in payload:
            self.error = payload
            return
        for key, value in payload.items():
            if key == "choices":
                for choice in value or ():
                    self._choice(choice)
            elif value is not None or key not in self._top:
                self._top[key] = value

    def _choice(self, part: Json) -> None:
        index = part.get("index", 0)
        choice = self._choices.setdefault(index, {"index": index, "text": ""})
        rest = {k: v for k, v in part.items() if k not in ("index", "finish_reason")}
        merge(choice, rest)
        choice["finish_reason"] = part.get("finish_reason") or choice.get("finish_reason")

    @property
    def finished(self) -> bool:
        # Servers that send no [DONE] still give every choice a finish reason.
        ended = bool(self._choices) and all(c.get("finish_reason") for c in self._choices.values())
        return self.complete or ended

    def build(self) -> Any | None:
        if not self._top and not self._choices:
            return None
        return {**self._top, "choices": [self._choices[i] for i in sorted(self._choices)]}
