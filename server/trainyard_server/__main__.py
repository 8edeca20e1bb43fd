"""`python -m trainyard_server`."""

import gc
import sys

gc.disable()  # until `main` serves: all that is loaded stays, and looking through it is a sixth of the start

from trainyard_server.main import main  # noqa: E402

sys.exit(main())
