"""Judged turns for tests, made from the stored example."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from libs.contracts import TurnJudged, decode, encode
from libs.streams.types import StreamRecord

EXAMPLES = Path(__file__).parents[1] / "libs" / "contracts" / "examples"
EXAMPLE = decode((EXAMPLES / "turns.judged" / "v1" / "rejected-with-hint.json").read_bytes(), TurnJudged)


def judged(feedback_id: str, scenario: str = "homework", **changes: Any) -> TurnJudged:
    """The example under another id, with the changes."""
    return msgspec.structs.replace(
        EXAMPLE, feedback_id=feedback_id, turn_id=f"turn-{feedback_id}", scenario=scenario, **changes
    )


def record_of(turn: TurnJudged, offset: int, partition: int = 0) -> StreamRecord:
    """The turn as it is read from turns.judged."""
    return StreamRecord("turns.judged", partition, offset, turn.scenario.encode(), encode(turn))
