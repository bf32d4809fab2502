"""Give freed memory back to the system between batches."""

from __future__ import annotations

import ctypes


def trim() -> None:
    """Ask glibc to return free heap pages. A step's activations are freed as many small blocks, which glibc keeps:

    without this the process stays at its peak, beside an inference server that could use the memory. No-op elsewhere.
    """
    try:
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    except (OSError, AttributeError):
        return
