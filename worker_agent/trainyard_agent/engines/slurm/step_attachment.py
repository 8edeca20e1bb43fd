"""A command in a further step of a job: srun on this machine, whose command's exit code is in a file (`step.py`)."""

import os
from collections.abc import Sequence
from pathlib import Path

from trainyard_agent.engines.slurm import commands
from trainyard_agent.host.waiting import deadline_in, wait_until
from trainyard_agent.runtimes.attaching.local_command import LocalCommand
from trainyard_protocol.wire.attachments import Terminal

_FILE_S, _PAUSE_S = 10.0, 0.1
_UNKNOWN = 255


class StepAttachment(LocalCommand):
    def __init__(self, srun: Sequence[str], terminal: Terminal | None, state_dir: Path, code: Path) -> None:
        super().__init__(srun, terminal, state_dir, commands.environment(os.environ))
        self._code = code

    def exit_code(self) -> int:
        """That in the file, which may take a moment to be seen here; srun's own where it has failed."""
        if failed := super().exit_code():
            return failed
        # A listing asks the file server, where a look-up may be cached.
        wait_until(lambda: self._code in self._code.parent.iterdir(), deadline_in(_FILE_S), _PAUSE_S)
        try:
            return int(self._code.read_text(encoding="ascii"))
        except (OSError, ValueError):
            return _UNKNOWN

    def release(self) -> None:
        super().release()
        self._code.unlink(missing_ok=True)
