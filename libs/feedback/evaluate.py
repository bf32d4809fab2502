"""`clawback judge-eval`: the eval form of libs.feedback.offline under a name of its own."""

from __future__ import annotations

from collections.abc import Sequence

from libs.feedback import offline


def main(argv: Sequence[str]) -> int:
    return offline.main(["eval", *argv])
