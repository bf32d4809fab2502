"""Generated traffic for property tests: conversations of several people and agents, interleaved in time."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

from libs.contracts import TrafficRaw
from libs.matching.reading import read_record

WORDS = ("Thanks.", "No, stop using lists.", "And the next one?", "ok", "Shorter, please.")
COMMON = ("Done.", "ok", "")
IDS = ("none", "tag", "hint", "cache key")


@st.composite
def scripts(draw: st.DrawFn) -> dict[str, Any]:
    """How one conversation goes."""
    return {
        "opening": draw(st.sampled_from(("Hello.", "List what is in this folder.", "Hello."))),
        "tenant": draw(st.sampled_from(("a", "b"))),
        "ids": draw(st.sampled_from(IDS)),
        "id": draw(st.sampled_from(("s1", "s2"))),
        "window": draw(st.sampled_from((0, 0, 0, 3, 4))),
        "turns": draw(
            st.lists(
                st.fixed_dictionaries(
                    {
                        "words": st.sampled_from(WORDS),
                        "common": st.sampled_from((*[None] * 5, *COMMON)),
                        "fails": st.sampled_from((False, False, False, True)),
                    }
                ),
                min_size=1,
                max_size=5,
            )
        ),
    }


@st.composite
def traffics(draw: st.DrawFn) -> list[TrafficRaw]:
    """Records in order of arrival (completion), of up to four conversations."""
    rows: list[dict[str, Any]] = []
    order = draw(st.permutations([n for n in range(4) for _ in range(5)]))
    talks = [_talk(n, script) for n, script in enumerate(draw(st.lists(scripts(), min_size=1, max_size=4)))]
    left = [list(t) for t in talks]
    clock = 1_000.0
    for n in order:
        if n < len(left) and left[n]:
            clock += 1.0
            row = left[n].pop(0)
            rows.append({**row, "received_at": clock, "completed_at": clock + 0.5})
    return [read_record(json.dumps(r).encode()) for r in rows]


def _talk(number: int, script: dict[str, Any]) -> list[dict[str, Any]]:
    rows = []
    history = [{"role": "user", "content": script["opening"]}]
    headers = {"tag": {"x-reef-tag-session": script["id"]}, "hint": {"x-session-id": script["id"]}}
    for turn, step in enumerate(script["turns"]):
        own = f"Reply {turn} of talk {number}: it goes on as it has to."
        text = own if step["common"] is None else step["common"]
        shown = history[-script["window"] :] if script["window"] else list(history)
        request: dict[str, Any] = {"model": "m", "messages": [{"role": "system", "content": "Help."}, *shown]}
        if script["ids"] == "cache key":
            request["prompt_cache_key"] = script["id"]
        served = {"choices": [{"index": 0, "message": {"role": "assistant", "content": text}}]}
        rows.append(
            {
                "exchange_id": f"x{number}-{turn}",
                "version": 1,
                "scenario": "default",
                "tenant": script["tenant"],
                "path": "/v1/chat/completions",
                "headers": headers.get(script["ids"], {}),
                "request": request,
                "response": {"error": "busy"} if step["fails"] else served,
                "outcome": "upstream_error" if step["fails"] else "completed",
                "release_id": "base",
            }
        )
        if not step["fails"]:
            history = [*history, {"role": "assistant", "content": text}, {"role": "user", "content": step["words"]}]
    return rows
