"""`python -m libs.feedback judge|eval`: feedback inference alone, on files."""

from __future__ import annotations

import sys

from libs.feedback.offline import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
