"""The error of a release that must not serve; apart from the engine so that it imports no torch."""

from __future__ import annotations

from libs.errors import ClawbackError


class ReleaseRefused(ClawbackError):
    """Files missing, changed or unfit, or an engine that says no. `reason` is a metric label."""
