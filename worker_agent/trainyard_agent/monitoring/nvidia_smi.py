"""How busy the machine's NVIDIA GPUs are, all of them in one call of the driver's own program."""

import shutil
import subprocess
from collections.abc import Mapping

from trainyard_agent.runtimes.use import parse_gpus
from trainyard_protocol.usage import GpuUsage

_QUERY = ["--query-gpu=uuid,utilization.gpu,memory.used,memory.total", "--format=csv,noheader,nounits"]


class NotMeasured(Exception):
    """The driver did not say; the message says why."""


class Devices:
    """To be used by one thread at a time."""

    def __init__(self, limit_s: float = 5.0) -> None:
        self._limit_s = limit_s
        self._hanging: subprocess.Popen[str] | None = None

    def measure(self) -> Mapping[str, GpuUsage]:
        """By device id. Raises NotMeasured. A driver that hangs cannot always be killed: it is not waited for, and not
        asked again before it has answered."""
        if self._hanging is not None and self._hanging.poll() is None:
            raise NotMeasured("nvidia-smi does not end.")
        self._hanging = None
        program = shutil.which("nvidia-smi")
        if program is None:
            raise NotMeasured("there is no program nvidia-smi any more.")
        try:
            asked = subprocess.Popen(
                [program, *_QUERY],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                errors="replace",
            )
        except OSError as error:
            raise NotMeasured(f"nvidia-smi cannot be started: {error}.") from error
        try:
            answer, _ = asked.communicate(timeout=self._limit_s)
        except subprocess.TimeoutExpired:
            asked.kill()
            if asked.stdout is not None:
                asked.stdout.close()
            self._hanging = asked
            raise NotMeasured(f"nvidia-smi has not answered within {self._limit_s:g} s.") from None
        if asked.returncode:
            raise NotMeasured(f"nvidia-smi ended with exit status {asked.returncode}.")
        return parse_gpus(answer)
