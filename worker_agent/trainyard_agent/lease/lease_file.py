"""lease.json: how long replicas may live without the server, for whoever sees to it in the agent's place.

Times are those of CLOCK_BOOTTIME, which all processes of one boot share, and which neither a clock that is set
nor a machine that sleeps can mislead. The file is overwritten in place: a full disk cannot keep a lease from being
renewed. It need not survive a power cut, for neither do the replicas.

Standard library only: the fence (`fence.py`) is a small process.
"""

import json
import os
import time
import zlib
from dataclasses import asdict, dataclass
from pathlib import Path

from trainyard_agent.host.files import DamagedFile

NAME = "lease.json"

_BYTES = 512  # all of it, always: what is overwritten needs no more room
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_MARGIN_S = 5.0  # for killing, and for machines that are slow
_LATER_S = 2.0
_TRIES, _PAUSE_S = 5, 0.01  # a reader may come in the middle of a write


@dataclass(frozen=True, slots=True)
class Grant:
    """The server answered a request that was sent at `heard`, and may be silent for `lease_s` from then on."""

    lease_s: float
    heard: float
    boot_id: str
    version: str

    def stop_at(self, grace_s: float) -> float:
        """When the agent stops a run with this grace, so that it is gone when the lease ends.

        However long the grace, half of the lease is always left for the server to come back in. (The server
        waits for the lease and the grace.)
        """
        return self.heard + max(self.lease_s - grace_s - _MARGIN_S, self.lease_s / 2)

    @property
    def later_s(self) -> float:
        """How long after the agent somebody else does it."""
        return min(_LATER_S, self.lease_s / 8)


def boot_id() -> str:
    return _BOOT_ID.read_text(encoding="ascii").strip()


def read(path: Path) -> Grant | None:
    """None where there is no lease. Raises DamagedFile, OSError."""
    for attempt in range(1, _TRIES + 1):
        try:
            return _parsed(path.read_bytes())
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (ValueError, TypeError, KeyError) as error:
            if attempt == _TRIES:
                raise DamagedFile(f"{path} is damaged ({error})") from error
        time.sleep(_PAUSE_S)
    raise AssertionError("unreachable")


def write(path: Path, grant: Grant) -> None:
    """Raises OSError."""
    said = json.dumps(asdict(grant))
    data = f"{said}\n{zlib.crc32(said.encode())}".encode().ljust(_BYTES, b"\n")
    fd = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        os.pwrite(fd, data, 0)
    finally:
        os.close(fd)


def _parsed(data: bytes) -> Grant:
    said, check = data.split(b"\n")[:2]
    if zlib.crc32(said) != int(check):
        raise ValueError("it does not agree with its check sum")
    return Grant(**json.loads(said))
