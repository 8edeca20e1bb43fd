"""An agent's watchdog with its own `main` and shorter times: `quick_watchdog.py STATE_DIR LOCK_FD`."""

import sys
from pathlib import Path

from trainyard_agent import watchdog
from trainyard_agent.lease.watchdog_files import command

SETTLE_S = 1.0


def quick_command(state_dir: Path, lock: int) -> list[str]:
    """The command that replaces `watchdog_files.command`."""
    return [sys.executable, "-P", __file__, *command(state_dir, lock)[-2:]]


if __name__ == "__main__":
    watchdog._SETTLE_S = SETTLE_S
    watchdog.command = quick_command  # type: ignore[attr-defined]
    watchdog.main(sys.argv[1], int(sys.argv[2]))
