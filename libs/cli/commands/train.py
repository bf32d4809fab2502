"""Run optimizer steps offline on batches or judged turns in JSONL files."""

from __future__ import annotations

from libs.cli.offline import offline_command

command = offline_command("train", "libs.learning.__main__", __doc__)
