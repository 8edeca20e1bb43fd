"""Output of a program that its supervisor has, held open by the agent too.

Should the supervisor be killed, the kernel keeps it, and the agent completes the log.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from trainyard_agent.host.files import read_json
from trainyard_agent.runtimes.masking import Mask
from trainyard_agent.runtimes.spool import Spool
from trainyard_agent.runtimes.supervisor import finish_log

SECRETS_FD = 4
"""Of a supervisor whose program has secrets."""


@dataclass(frozen=True, slots=True)
class HeldOutput:
    spools: dict[str, Spool]
    mask: Mask

    @classmethod
    def of(cls, supervisor: int, descriptors: Mapping[str, tuple[int, int]]) -> "HeldOutput":
        """That of a supervisor that lives. Raises OSError."""
        mask = Mask(_secret_values(supervisor))
        spools: dict[str, Spool] = {}
        try:
            for stream, (pipe, memory) in descriptors.items():
                spools[stream] = Spool.of_process(supervisor, pipe, memory)
        except OSError:
            cls(spools, mask).close()
            raise
        return cls(spools, mask)

    def finish(self, directory: Path) -> int | None:
        """Complete the log in the replica's directory, after the supervisor and its descendants have ended. Returns its
        number of lines; None where it may lack some. Raises OSError; it can be repeated then."""
        quota = (read_json(directory / "launch.json") or {}).get("log_quota", 0)
        return finish_log(str(directory), int(quota), self.mask, self.spools)

    def close(self) -> None:
        for spool in self.spools.values():
            spool.close()


def _secret_values(supervisor: int) -> list[str]:
    """The values to mask, from the file in memory that the supervisor has them from."""
    path = Path(f"/proc/{supervisor}/fd/{SECRETS_FD}")
    if not path.is_symlink() or "memfd:secrets" not in str(path.readlink()):
        return []
    return list(json.loads(path.read_bytes())["values"])
