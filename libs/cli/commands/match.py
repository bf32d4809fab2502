"""Bind recorded replies to the answers they got: JSONL in, JSONL out, no services."""

from __future__ import annotations

from libs.cli.offline import offline_command

command = offline_command("match", "libs.matching.__main__", __doc__)
