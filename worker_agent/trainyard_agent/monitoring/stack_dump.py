"""What a replica's program is doing just now: the stacks of its threads.

A program may say at its start that it writes them on a signal (`{"event": "start", "stacks": "SIGUSR1"}`); then it is
sent that signal, if it also has a handler for it, and what faulthandler writes is read from its log. To any other
program the signal would mean something else, or the end. Of those, py-spy reads the stacks from outside, where it is
installed; it does not even pause them.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from trainyard_agent.host import procfs as process_table
from trainyard_agent.runtimes.base import Runtime
from trainyard_protocol.sync import LogLine

LIMIT = 16 * 1024
"""Characters that are kept of one replica's stacks."""

_PATIENCE_S = 5.0  # for a program that was sent the signal
_QUIET_S = 0.3  # without a further line: it has written all
_PAUSE_S = 0.05
_PROCESSES = 8  # that py-spy looks at
_PY_SPY_S = 10.0  # of one process
_LINES, _BYTES = 1000, 1 << 19
_SIGNAL = signal.SIGUSR1

_THREAD = re.compile(r"(?P<current>Current thread|Thread) 0x[0-9a-f]+.* \(most recent call first\):")
_FRAME = re.compile(r'  (File ".*", line \d+ in .+|\.\.\.|<no Python frame>)')


class Stacks:
    def __init__(self, runtime: Runtime, py_spy: str | None = None) -> None:
        """`py_spy` is the program; None: the one that is found, if there is one; "": none."""
        self._runtime = runtime
        self._py_spy = _find_py_spy() if py_spy is None else py_spy

    def take(self, run_id: str, task: str, announced: str, start: int) -> str:
        """The stacks as text, or why they cannot be told; never more than `LIMIT`. Blocks for some seconds.

        `announced` is the signal on which the program said that it writes them; its log has `start` lines by now.
        """
        pids = self._runtime.processes(run_id, task)
        if not pids:
            return "Its stacks cannot be told: the agent does not see its processes."
        stopped = [pid for pid in pids if process_table.is_stopped(pid)]
        said = [f"Process {pid} is stopped, by SIGSTOP or a debugger." for pid in stopped]
        listener = self._listener(pids, announced)
        if listener and listener not in stopped:
            lines = self._ask(listener, run_id, task, start)
            if lines:
                return _bounded([*said, *lines])
            said.append(f"Process {listener} was sent {_SIGNAL.name} and wrote no stacks.")
        return _bounded([*said, *self._spy(pids)])

    @staticmethod
    def _listener(pids: Sequence[int], announced: str) -> int:
        """The process to send the signal to; 0: none that would not die of it, or take it for something else."""
        if announced != _SIGNAL.name:
            return 0
        return next((pid for pid in pids if process_table.catches(pid, _SIGNAL)), 0)

    def _ask(self, pid: int, run_id: str, task: str, start: int) -> list[str]:
        try:
            os.kill(pid, _SIGNAL)
        except OSError:  # it ended in this moment, or is another user's
            return []
        new: list[LogLine] = []
        give_up_at = time.monotonic() + _PATIENCE_S
        quiet_at = float("inf")
        while time.monotonic() < min(give_up_at, quiet_at):
            found = self._runtime.read_log(run_id, task, start, _LINES, _BYTES).lines
            if found:
                start += len(found)
                new += [line for line in found if line.stream == "stderr"]
                del new[:-_LINES]
                quiet_at = time.monotonic() + _QUIET_S if dumped(new) else quiet_at
            else:
                time.sleep(_PAUSE_S)
        return dumped(new)

    def _spy(self, pids: Sequence[int]) -> list[str]:
        if not self._py_spy:
            return [
                "Its stacks cannot be told: it has not said that it writes them on SIGUSR1, and py-spy is not "
                "installed beside the agent (pip install 'trainyard[stacks]')."
            ]
        told: list[str] = []
        trouble = ""
        for pid in pids[:_PROCESSES]:
            try:
                done = subprocess.run(
                    [self._py_spy, "dump", "--nonblocking", "--full-filenames", "--pid", str(pid)],
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    text=True,
                    errors="replace",
                    timeout=_PY_SPY_S,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                trouble = trouble or f"py-spy said nothing of process {pid} for {_PY_SPY_S:g} s"
                continue
            except OSError as error:
                trouble = f"{self._py_spy} cannot be started: {error.strerror}"
                break
            if done.returncode == 0:
                told += _of_py_spy(pid, done.stdout)
            else:
                trouble = trouble or _reason(done.stderr, pid)
        return told or [f"Its stacks cannot be told: {trouble or 'it has no process any more'}."]


def dumped(lines: Iterable[LogLine]) -> list[str]:
    """What faulthandler wrote, of all that a program wrote to stderr: the thread that took the signal, which is the
    main one, first. Empty as long as there is no frame."""
    threads: list[list[str]] = []
    for line in lines:
        match = _THREAD.fullmatch(line.text)
        if match:
            thread = [line.text]
            threads.insert(0, thread) if match["current"] == "Current thread" else threads.append(thread)
            latest = thread
        elif threads and _FRAME.fullmatch(line.text):
            latest.append(line.text)
    found = [text for thread in threads for text in thread]
    return found if any(_FRAME.fullmatch(text) for text in found) else []


def _of_py_spy(pid: int, output: str) -> list[str]:
    """Without its headline, which repeats a command line that may be a whole program."""
    lines = output.splitlines()
    first = next((at for at, line in enumerate(lines) if line.startswith("Thread ")), len(lines))
    name = process_table.command(pid).split("\n", 1)[0][:200]
    return [f"Process {pid}: {name}", *(line for line in lines[first:] if line.strip())]


def _reason(stderr: str, pid: int) -> str:
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    error = next((line for line in lines if "Error" in line), lines[0] if lines else "it failed")
    return f"py-spy of process {pid}: {error.removeprefix('Error: ').rstrip('.')}"


def _bounded(lines: Sequence[str]) -> str:
    text = "\n".join(lines)
    return text if len(text) <= LIMIT else text[: LIMIT - 20] + "\n(cut off here)"


def _find_py_spy() -> str:
    """Beside the Python that runs us, or on the PATH; "" if it is not installed."""
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if os.access(beside, os.X_OK) else shutil.which("py-spy") or ""
