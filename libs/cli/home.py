"""Where the local state lies, and which stack runs from it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from libs.errors import ConfigError

if TYPE_CHECKING:
    from deploy.local.state import Stack


def home() -> Path:
    """CLAWBACK_HOME, `.clawback` in the current directory unless set."""
    return Path(os.environ.get("CLAWBACK_HOME") or ".clawback").resolve()


def running_stack() -> Stack:
    """The stack that runs from this home. Raises ConfigError with the fix when none does."""
    from deploy.local import state

    stack = state.read(home())
    if stack is None or stack.supervisor is None or not stack.supervisor.process("supervisor").alive():
        raise ConfigError(f"no stack runs from {home()}; `clawback up` starts one (or set CLAWBACK_HOME)")
    return stack


def check_model() -> None:
    """Raise ConfigError with the fix when the base model is not prepared."""
    target = home() / "models" / "smollm2-135m-instruct"
    if not (target / "config.json").exists():
        raise ConfigError(f"no base model at {target}; `make setup` fetches and converts it (90 MB, once)")
