"""Score a judge on labelled next states: precision, coverage, targets, per kind."""

from __future__ import annotations

from libs.cli.offline import offline_command

command = offline_command("judge-eval", "libs.feedback.evaluate", __doc__)
