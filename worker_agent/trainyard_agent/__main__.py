"""`python -m trainyard_agent`."""

import gc
import os
import sys

gc.disable()  # all that is loaded stays, and looking through it is a tenth of the start
# httpx has a command line of its own, for which it imports rich and Pygments: half of its time, for nobody here.
sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]  # so the import system notes what cannot be had
sys.modules.setdefault("sniffio", None)  # type: ignore[arg-type]  # not installed: httpcore looks for it in each call
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # it looks for some in all packages that are installed

from trainyard_agent.main import main  # noqa: E402

if __name__ == "__main__":
    gc.freeze()
    gc.enable()
    sys.exit(main())
