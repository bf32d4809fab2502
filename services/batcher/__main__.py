"""`python -m services.batcher`."""

import sys

from services.batcher.main import main

sys.exit(main())
