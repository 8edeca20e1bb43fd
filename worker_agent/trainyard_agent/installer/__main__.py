"""`python3 installer.pyz PLAN` makes an environment in a container; `-` installs by the plan on stdin."""

from __future__ import annotations

import json
import sys

from . import container, installation


def main(plan: str) -> None:
    if plan == "-":
        sys.exit(installation.main(json.load(sys.stdin)))
    container.main(plan)


if __name__ == "__main__":
    main(sys.argv[1])
