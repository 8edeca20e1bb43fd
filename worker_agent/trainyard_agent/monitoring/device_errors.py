"""Errors of the machine's GPUs: Xids in the kernel's log, and uncorrected ECC errors that nvidia-smi counts.

Only those that the hardware has. Most Xids are of programs, such as 13 and 31 of an illegal access to memory.
Source: NVIDIA's "XID Errors" (GPU Deployment and Management).
"""

import contextlib
import logging
import os
import re
import threading
from pathlib import Path

from trainyard_agent.monitoring.nvidia_smi import NotMeasured, NvidiaSmi

EVERY_S = 30.0
"""Seconds between two looks."""

XIDS = {
    48: "double-bit ECC error",
    62: "internal microcontroller halted",
    64: "ECC row remapping failed",
    74: "NVLink error",
    79: "GPU has fallen off the bus",
    94: "contained ECC error",
    95: "uncontained ECC error",
    119: "GSP timeout",
    120: "GSP error",
    140: "unrecovered ECC error",
}

KERNEL_LOG = Path("/dev/kmsg")
_XID = re.compile(rb"NVRM: Xid \(PCI:([0-9A-Fa-f:.]{1,32})\): (\d{1,5})\b")
_RECORD = 8192  # bytes: the kernel refuses to give a record to a smaller buffer
_MOST = 16
_log = logging.getLogger(__name__)


class DeviceErrors:
    """The errors since its start, looked at in a thread of its own."""

    def __init__(self) -> None:
        self._smi = NvidiaSmi()
        self._closed = threading.Event()
        self._xids: list[str] = []
        self._kernel_log: int | None = None
        self.errors: tuple[str, ...] = ()
        """The errors at the last look, one text each; replaced as a whole."""

    def start(self, kernel_log: Path = KERNEL_LOG) -> None:
        """Look again and again, until `close`."""
        try:
            self._kernel_log = os.open(kernel_log, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.lseek(self._kernel_log, 0, os.SEEK_END)  # what was before may have been mended
        except OSError as error:
            _log.info("Xids are not seen: %s cannot be read (%s)", kernel_log, error.strerror)
        threading.Thread(target=self._repeat, name="device-errors", daemon=True).start()

    def close(self) -> None:
        self._closed.set()

    def look(self) -> None:
        for xid in self._new_xids():
            self._xids = [*(seen for seen in self._xids if seen != xid), xid][-_MOST:]
        errors = (*self._xids, *self._ecc_errors())
        if errors != self.errors:
            self.errors = errors
            _log.error("GPU errors: %s", "; ".join(errors) or "none any more")

    def _repeat(self) -> None:
        while not self._closed.wait(EVERY_S):
            self.look()

    def _new_xids(self) -> list[str]:
        found: list[str] = []
        while self._kernel_log is not None:
            try:
                record = os.read(self._kernel_log, _RECORD)
            except BlockingIOError:
                break
            except BrokenPipeError:
                continue  # records were overwritten before they were read
            except OSError as error:
                _log.warning("Xids are not seen any more: the kernel's log cannot be read (%s)", error.strerror)
                self._kernel_log = None
                break
            if not record:
                break
            for bus, number in _XID.findall(record):
                if (what := XIDS.get(int(number))) is not None:
                    found.append(f"Xid {int(number)} ({what}) of the GPU at {bus.decode()}")
        return found

    def _ecc_errors(self) -> list[str]:
        counts: dict[str, str] = {}
        with contextlib.suppress(NotMeasured):  # the usage reporter says so
            for line in self._smi.query("uuid,ecc.errors.uncorrected.volatile.total").splitlines():
                gpu, _, count = (part.strip() for part in line.partition(","))
                if count.isdecimal() and int(count):
                    counts[gpu] = count
        return [f"{count} uncorrected ECC errors of {gpu}" for gpu, count in counts.items()]
