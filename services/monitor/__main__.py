from services.monitor.main import main

raise SystemExit(main())
