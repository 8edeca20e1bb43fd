"""lease.json: the saved lease, for the watchdog and for an agent that restarts.

Times are those of CLOCK_BOOTTIME, which all processes of one boot share; it counts suspended time and is never set.
The file is overwritten in place, so a lease can be renewed on a full disk. It need not survive a power cut.

Standard library only: the watchdog (`watchdog.py`) is a small process.
"""

import json
import os
import time
import zlib
from dataclasses import astuple, dataclass
from pathlib import Path

from trainyard_agent.host.files import DamagedFile

NAME = "lease.json"

_BYTES = 512  # always written in full: overwriting needs no disk space
_FIELDS = ("lease_s", "heard", "boot_id", "version")  # in the order of Grant; older versions read these names
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_MARGIN_S = 5.0  # for killing, and for slow machines
_WATCHDOG_DELAY_S = 2.0
_TRIES, _PAUSE_S = 5, 0.01  # a read may meet a write


@dataclass(frozen=True, slots=True)
class Grant:
    """A lease of `lease_s` seconds from `renewed_at`, when the last answered request was sent."""

    lease_s: float
    renewed_at: float
    boot_id: str
    version: str

    def stop_at(self, grace_s: float) -> float:
        """When the agent stops a run with this grace, so that it has ended when the lease expires.

        Never before two thirds of the lease: a grace that is longer than what is left is cut short.
        """
        return max(self._ends_at - grace_s, self.renewed_at + self.lease_s * 2 / 3)

    def kill_at(self, grace_s: float) -> float:
        """When the agent kills what is left of a run with this grace."""
        return min(self.stop_at(grace_s) + grace_s, self._ends_at)

    @property
    def _ends_at(self) -> float:
        return self.renewed_at + self.lease_s - min(_MARGIN_S, self.lease_s / 4)

    @property
    def watchdog_delay_s(self) -> float:
        """Seconds after the agent's deadline at which the watchdog acts."""
        return min(_WATCHDOG_DELAY_S, self.lease_s / 8)


def boot_id() -> str:
    return _BOOT_ID.read_text(encoding="ascii").strip()


def read(path: Path) -> Grant | None:
    """The saved lease; None if there is none. Raises DamagedFile, OSError."""
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
    """Save the lease. Raises OSError."""
    text = json.dumps(dict(zip(_FIELDS, astuple(grant), strict=True)))
    data = f"{text}\n{zlib.crc32(text.encode())}".encode().ljust(_BYTES, b"\n")
    fd = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        os.pwrite(fd, data, 0)
    finally:
        os.close(fd)


def _parsed(data: bytes) -> Grant:
    text, checksum = data.split(b"\n")[:2]
    if zlib.crc32(text) != int(checksum):
        raise ValueError("its checksum does not match")
    value = json.loads(text)
    return Grant(*(value[field] for field in _FIELDS))
