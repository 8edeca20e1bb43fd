"""`python -m trainyard_agent`."""

import gc
import sys

gc.disable()  # all that is loaded stays, and looking through it is a tenth of the start
# httpx has a command line of its own, for which it imports rich and Pygments: half of its time, for nobody here.
sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]  # so the import system notes what cannot be had
sys.modules.setdefault("sniffio", None)  # type: ignore[arg-type]  # not installed: httpcore looks for it in each call

from trainyard_agent.main import main  # noqa: E402

if __name__ == "__main__":
    gc.freeze()
    gc.enable()
    sys.exit(main())
