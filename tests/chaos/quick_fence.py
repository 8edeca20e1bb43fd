"""The fence of an agent, with its own `main` and shorter times: `quick_fence.py STATE_DIR LOCK_FD`."""

import sys
from pathlib import Path

from trainyard_agent import watchdog as fence
from trainyard_agent.lease.watchdog_files import command

SETTLE_S = 1.0


def quick_command(state_dir: Path, lock: int) -> list[str]:
    """What the agent starts in place of `fencing.command`: the same fence, out of this file."""
    return [sys.executable, "-P", __file__, *command(state_dir, lock)[-2:]]


if __name__ == "__main__":
    fence._SETTLE_S = SETTLE_S
    fence.command = quick_command  # type: ignore[attr-defined]
    fence.main(sys.argv[1], int(sys.argv[2]))
