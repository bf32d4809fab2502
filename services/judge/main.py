"""Entry point of the judge: settings first, then the loop."""

from __future__ import annotations

import sys

from libs.errors import ConfigError
from libs.streams.config import load
from services.judge.config import JudgeSettings


def main() -> int:
    try:
        settings = load(JudgeSettings)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 1
    from libs.contracts import turns_matched
    from libs.streams.service import run_consumer
    from services.judge.build import open_handler

    return run_consumer("judge", settings, [turns_matched.TOPIC], lambda: open_handler(settings))
