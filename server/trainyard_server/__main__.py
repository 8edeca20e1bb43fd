"""`python -m trainyard_server`."""

import gc
import os
import sys

gc.disable()  # until `main` serves: all that is loaded stays, and looking through it is a sixth of the start
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # it looks for some in all packages that are installed

try:
    from trainyard_server.main import main
except ModuleNotFoundError as error:
    if (error.name or "").startswith("trainyard"):
        raise
    sys.exit(f"trainyard_server: {error.name} is not installed. Install it: pip install 'trainyard[server]'")

sys.exit(main())
