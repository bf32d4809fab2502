"""What README.md tells people to type, taken from its code blocks."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    """The code blocks of one language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)


def commands() -> list[list[str]]:
    """Every shell command, split into words."""
    lines = [line for block in blocks("sh") for line in block.splitlines() if line.strip()]
    return [shlex.split(line, comments=True) for line in lines]
