"""`python -m services.matcher`."""

import sys

from services.matcher.main import main

sys.exit(main())
