"""Judge matched turns offline: JSONL in, JSONL out, no services."""

from __future__ import annotations

from libs.cli.offline import offline_command

command = offline_command("judge", "libs.feedback.__main__", __doc__)
