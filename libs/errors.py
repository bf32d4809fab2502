"""The error tree. An error's class tells the stream loop what to do with the record that raised it.

retry        the cause is outside the record and may pass (broker, Redis, judge endpoint); back off and try again
dead_letter  the record itself is at fault; set it aside with the reason and go on
stop         going on would lose or corrupt records; exit so that a supervisor restarts the service
"""

from __future__ import annotations

from typing import ClassVar, Literal

Action = Literal["retry", "dead_letter", "stop"]


class ClawbackError(Exception):
    """Base of every error that Clawback raises on purpose.

    `reason` is a short snake_case label: it becomes a metric label and the reason of a dead letter.
    """

    action: ClassVar[Action] = "stop"

    def __init__(self, message: str, *, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


class RetryError(ClawbackError):
    """The cause lies outside the record and may pass."""

    action = "retry"


class DeadLetterError(ClawbackError):
    """The record can never be handled; keep it with its reason."""

    action = "dead_letter"


class StopError(ClawbackError):
    """The service must not go on."""

    action = "stop"


class ContractError(DeadLetterError):
    """A record does not have its topic's form. The message names the field and what it should be."""

    def __init__(self, message: str, *, reason: str = "contract") -> None:
        super().__init__(message, reason=reason)


class ConfigError(StopError):
    """A setting is missing or wrong. The message names the setting and the fix."""

    def __init__(self, message: str, *, reason: str = "config") -> None:
        super().__init__(message, reason=reason)
