"""OpenAI text completions: `text_completion` events to one `text_completion`."""

from __future__ import annotations

from libs.dialects.assembly.base import Json, merge
from libs.dialects.assembly.choices import ChoiceAssembler


class CompletionAssembler(ChoiceAssembler):
    """Takes the chunks of a streamed text completion, any number of choices."""

    def start(self) -> Json:
        return {"text": ""}

    def add(self, choice: Json, part: Json) -> None:
        merge(choice, {k: v for k, v in part.items() if k not in ("index", "finish_reason")})
        choice["finish_reason"] = part.get("finish_reason") or choice.get("finish_reason")
