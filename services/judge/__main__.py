import sys

from services.judge.main import main

sys.exit(main())
