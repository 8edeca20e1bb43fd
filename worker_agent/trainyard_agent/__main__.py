"""`python -m trainyard_agent`."""

import gc
import sys

gc.disable()  # all that is loaded stays, and looking through it is a tenth of the start

from trainyard_agent.main import main  # noqa: E402

if __name__ == "__main__":
    gc.freeze()
    gc.enable()
    sys.exit(main())
