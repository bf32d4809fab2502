"""Reading a flood costs no more than reading a long text: the rules judge shares its core with everybody's turns."""

from __future__ import annotations

import random
from typing import Any

import pytest

from libs.contracts import Message
from libs.feedback.judges.rules import RulesJudge
from libs.feedback.rules import clauses, repeat, text
from tests.unit.feedback.make import question, turns

COMPLAINT = "No, that is wrong. Please write it without lists."


def prose(chars: int, seed: int = 1) -> str:
    rng = random.Random(seed)
    words = ["".join(rng.choices("abcdefghij", k=6)) for _ in range(500)]
    return " ".join(rng.choice(words) + "." * (rng.random() < 0.1) for _ in range(chars // 7))


class Work:
    """Characters and pairs of words that the slow parts were given."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.counts = {"read": 0, "stemmed": 0, "compared": 0}
        self._count(patch, clauses, "sentences", "read", lambda a, *_: len(a))
        self._count(patch, repeat, "SequenceMatcher", "compared", lambda _, a, b, **__: len(a) * len(b))
        self._count(patch, text, "words", "stemmed", lambda a, *_: len(a))

    def _count(self, patch: pytest.MonkeyPatch, module: Any, name: str, key: str, size: Any) -> None:
        real = getattr(module, name)

        def counting(*args: Any, **kwargs: Any) -> Any:
            self.counts[key] += size(*args, **kwargs)
            return real(*args, **kwargs)

        patch.setattr(module, name, counting)


@pytest.mark.parametrize("where", ["prompt", "reply", "next_state", "everywhere", "repeated words"])
def test_ten_times_the_text_is_no_more_work(monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    def work(chars: int) -> dict[str, int]:
        long = " so" * (chars // 3) if where == "repeated words" else prose(chars)
        asked = f"Why does ice float? {long}" if where != "next_state" else "Why does ice float?"
        said = f"{COMPLAINT} {long}" if where in {"next_state", "everywhere", "repeated words"} else COMPLAINT
        fields: dict[str, Any] = {"reply": long} if where in {"reply", "everywhere"} else {}
        if where == "everywhere":
            fields["earlier"] = turns(long, long)
        with monkeypatch.context() as patch:
            counted = Work(patch)
            found = RulesJudge().judge(question(said, prompt=(Message("user", asked),), **fields))
        assert [j.verdict for j in found] == [-1]
        return counted.counts

    once, tenfold = work(30_000), work(300_000)
    for key, amount in once.items():
        assert tenfold[key] <= 1.1 * amount, key
