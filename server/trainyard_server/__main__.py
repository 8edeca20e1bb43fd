"""`python -m trainyard_server`."""

import sys

from trainyard_server.main import main

sys.exit(main())
