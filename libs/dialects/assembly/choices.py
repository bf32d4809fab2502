"""What the two OpenAI APIs with `choices` share: top-level fields, choices by index, and when all of them are done."""

from __future__ import annotations

from typing import Any

from libs.dialects.assembly.base import EventAssembler, Json, is_error


class ChoiceAssembler(EventAssembler):
    """Takes the chunks of a stream with any number of choices. Subclasses merge one piece of a choice at a time."""

    def __init__(self) -> None:
        super().__init__()
        self._top: Json = {}
        self._choices: dict[int, Json] = {}

    def start(self) -> Json:
        """What a choice has beside its index before its first piece."""
        raise NotImplementedError

    def add(self, choice: Json, part: Json) -> None:
        """Merge the next piece of a choice."""
        raise NotImplementedError

    def close_choice(self, choice: Json) -> Json:
        """A choice as the call without streaming has it."""
        return choice

    def take(self, name: str, payload: Json) -> None:
        if is_error(name, payload) and "choices" not in payload:
            return
        for key, value in payload.items():
            if key == "choices":
                for part in value or ():
                    index = part.get("index", 0)
                    if part.get("finish_reason") == "error":
                        self.error = self.error or payload
                    self.add(self._choices.setdefault(index, {"index": index, **self.start()}), part)
            elif value is not None or key not in self._top:
                self._top[key] = value

    @property
    def finished(self) -> bool:
        # Servers that send no [DONE] still give every choice a finish reason.
        ended = bool(self._choices) and all(c.get("finish_reason") for c in self._choices.values())
        return self.complete or ended

    def build(self) -> Any | None:
        if not self._top and not self._choices:
            return None
        return {**self._top, "choices": [self.close_choice(self._choices[i]) for i in sorted(self._choices)]}
