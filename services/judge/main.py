"""Entry point of the judge: settings first, then the loop."""

from __future__ import annotations

from libs.streams.config import load, load_or_exit
from services.judge.config import JudgeSettings


def main() -> int:
    settings = load_or_exit("judge", lambda: load(JudgeSettings))
    from libs.contracts import turns_matched
    from libs.streams.service import run_consumer
    from services.judge.build import open_handler

    return run_consumer("judge", settings, [turns_matched.TOPIC], lambda: open_handler(settings))
