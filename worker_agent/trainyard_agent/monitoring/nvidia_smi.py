"""Usage of the machine's NVIDIA GPUs, from one call of nvidia-smi."""

import shutil
import subprocess
from collections.abc import Mapping

from trainyard_agent.runtimes.use import parse_gpus
from trainyard_protocol.answers.usage import GpuUsage

_USAGE = "uuid,utilization.gpu,memory.used,memory.total"


class NotMeasured(Exception):
    """The GPUs could not be measured; the message says why."""


class NvidiaSmi:
    """Asks about all GPUs. Not thread-safe."""

    def __init__(self, limit_s: float = 5.0) -> None:
        self._limit_s = limit_s
        self._hanging: subprocess.Popen[str] | None = None

    def measure(self) -> Mapping[str, GpuUsage]:
        """Usage by device id. Raises NotMeasured."""
        return parse_gpus(self.query(_USAGE))

    def query(self, fields: str) -> str:
        """A line for each device, its fields separated by commas. Raises NotMeasured. If the driver hangs, nvidia-smi
        may survive SIGKILL: it is not waited for, and not started again before it has ended."""
        if self._hanging is not None and self._hanging.poll() is None:
            raise NotMeasured("nvidia-smi hangs.")
        self._hanging = None
        program = shutil.which("nvidia-smi")
        if program is None:
            raise NotMeasured("nvidia-smi was removed.")
        try:
            process = subprocess.Popen(
                [program, f"--query-gpu={fields}", "--format=csv,noheader,nounits"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                errors="replace",
            )
        except OSError as error:
            raise NotMeasured(f"nvidia-smi cannot be started: {error}.") from error
        try:
            output, _ = process.communicate(timeout=self._limit_s)
        except subprocess.TimeoutExpired:
            process.kill()
            if process.stdout is not None:
                process.stdout.close()
            self._hanging = process
            raise NotMeasured(f"nvidia-smi has not answered within {self._limit_s:g} s.") from None
        if process.returncode:
            raise NotMeasured(f"nvidia-smi ended with exit status {process.returncode}.")
        return output
