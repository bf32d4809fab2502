"""The base model's first replies, kept on disk: every arm starts from the same weights, questions and seeds.

They are asked once a seed, and scored by each arm's own preference. What a request holds is part of the key; the model
is not: a folder belongs to one study, and that to one model.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from experiments.homework.sessions import Sampling, SessionResult
from experiments.homework.student import Preference, Reply


class Remembered:
    """Replies to `questions` under `sampling` and `system`, in `directory`; without one nothing is kept."""

    def __init__(
        self, directory: Path | None, questions: Sequence[str], sampling: Sampling, system: str | None
    ) -> None:
        asked = {"questions": list(questions), "sampling": asdict(sampling), "system": system}
        name = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:16]
        self._asked = asked
        self._file = directory / f"{name}.json" if directory else None

    def results(self, preference: Preference) -> list[SessionResult]:
        """The replies kept, scored by `preference`; empty where there are none."""
        if self._file is None or not self._file.exists():
            return []
        kept = json.loads(self._file.read_text())
        results = []
        for number, (question, reply) in enumerate(zip(kept["questions"], kept["replies"], strict=True)):
            faults = preference.faults(Reply(reply["text"], finished=reply["whole"]))
            result = SessionResult(
                number=number,
                question=question,
                first_reply=reply["text"],
                whole=reply["whole"],
                faults=faults,
                passed=not faults,
                release_id=reply["release_id"],
            )
            results.append(result)
        return results

    def keep(self, results: Sequence[SessionResult]) -> None:
        """Write the replies for the runs to come."""
        if self._file is None:
            return
        replies = [{"text": r.first_reply, "whole": r.whole, "release_id": r.release_id} for r in results]
        self._file.parent.mkdir(parents=True, exist_ok=True)
        partial = self._file.with_suffix(f".{os.getpid()}.partial")
        partial.write_text(json.dumps({**self._asked, "replies": replies}, indent=2, ensure_ascii=False) + "\n")
        partial.replace(self._file)
