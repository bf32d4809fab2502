"""Entry point of `python -m services.policy`."""

import sys

from services.policy.main import main

sys.exit(main())
