"""What is printed for people: text from records and files cannot steer the terminal, faults are told in one line."""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Callable
from typing import Any

from libs.errors import ClawbackError

# Reorder or end a line without being seen (Unicode 15, UAX #9 and section 5.8).
_HIDDEN = (0x061C, 0x200E, 0x200F, 0x2028, 0x2029, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
_SHOWN = {c: f"\\x{c:02x}" for c in (*range(0x20), *range(0x7F, 0xA0)) if chr(c) not in "\n\t"}
_SHOWN |= {c: f"\\u{c:04x}" for c in _HIDDEN}
_IN_JSON = {c: f"\\u{c:04x}" for c in (*range(0x20), *range(0x7F, 0xA0), *_HIDDEN)} | {0x09: "\t", 0x0A: "\n"}


def plain(text: str) -> str:
    """The text with control characters spelt out (`\\x1b`), so that none reaches a terminal. Tab and line end stay."""
    return text.translate(_SHOWN)


def plain_json(text: str) -> str:
    """The same for a JSON text: spelt as JSON's own escapes, it still decodes to the same value."""
    return text.replace("\r", " ").translate(_IN_JSON)


def as_json(value: Any) -> str:
    """A value as indented JSON for a terminal."""
    return plain_json(json.dumps(value, ensure_ascii=False, indent=2))


def complain(text: str) -> None:
    """One line on standard error."""
    print(plain(text), file=sys.stderr)


def os_fault(error: OSError) -> str:
    """What the system refused, and on which file if it says so (a full disk and a broken pipe do not)."""
    if isinstance(error.filename, str | bytes | os.PathLike):
        return f"{os.fsdecode(error.filename)}: {error.strerror or error}"
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return f"an output cannot be written: {error.strerror}; free some, or write elsewhere"
    return str(error)


def reader_gone() -> int:
    """After a BrokenPipeError on standard output (`... | head`): nothing more is written to it. Returns the status."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)
    return 0


def exit_status(work: Callable[[], int]) -> int:
    """The work's own status; 2 after an error of ours or the system's, told in one line."""
    try:
        return work()
    except ClawbackError as error:
        complain(f"error: {error}")
    except BrokenPipeError:
        return reader_gone()
    except OSError as error:
        complain(f"error: {os_fault(error)}")
    return 2


__all__ = ["as_json", "complain", "exit_status", "os_fault", "plain", "plain_json", "reader_gone"]
