"""Stack dumps: the current stacks of the threads of a replica's program.

A program may announce at its start that it writes them on a signal (`{"event": "start", "stacks": "SIGUSR1"}`). It is
sent that signal if it also has a handler for it, and the output of faulthandler is read from its log. The signal could
kill any other program: its stacks are read by py-spy, if that is installed, which does not pause it.
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

from trainyard_agent.host import procfs
from trainyard_agent.runtimes.base import Runtime
from trainyard_protocol.wire.logs import LogLine

LIMIT = 16 * 1024
"""Maximum length of one replica's stacks, in characters."""

_DUMP_TIMEOUT_S = 5.0  # for a program that was sent the signal
_QUIET_S = 0.3  # without a further line: the dump is complete
_PAUSE_S = 0.05
_PROCESSES = 8  # read by py-spy
_PY_SPY_S = 10.0  # for one process
_LINES, _BYTES = 1000, 1 << 19
_SIGNAL = signal.SIGUSR1

_THREAD = re.compile(r"(?P<current>Current thread|Thread) 0x[0-9a-f]+.* \(most recent call first\):")
_FRAME = re.compile(r'  (File ".*", line \d+ in .+|\.\.\.|<no Python frame>)')


class StackDumper:
    """Reads the stacks of replicas, by signal or by py-spy."""

    def __init__(self, runtime: Runtime, py_spy: str | None = None) -> None:
        """`py_spy` is the program; None: the installed one, if there is one; "": none."""
        self._runtime = runtime
        self._py_spy = _find_py_spy() if py_spy is None else py_spy

    def dump(self, run_id: str, task: str, announced: str, start: int) -> str:
        """The stacks as text, or why they cannot be read; at most `LIMIT` characters. Blocks for some seconds.
        `announced` is the signal of the program's start event; its log has `start` lines."""
        pids = [pid for pid in self._runtime.processes(run_id, task) if procfs.name(pid) != procfs.LAUNCHER]
        if not pids:
            return "Its stacks cannot be read: the agent does not see its processes."
        stopped = [pid for pid in pids if procfs.is_stopped(pid)]
        notes = [f"Process {pid} is stopped, by SIGSTOP or a debugger." for pid in stopped]  # parsed by the server
        listener = self._listener(pids, announced)
        if listener and listener not in stopped:
            lines = self._signal_and_read(listener, run_id, task, start)
            if lines:
                return _bounded([*notes, *lines])
            notes.append(f"Process {listener} was sent {_SIGNAL.name} and wrote no stacks.")
        return _bounded([*notes, *self._run_py_spy(pids)])

    @staticmethod
    def _listener(pids: Sequence[int], announced: str) -> int:
        """The process to send the signal to; 0 if none has announced it and handles it."""
        if announced != _SIGNAL.name:
            return 0
        return next((pid for pid in pids if procfs.catches(pid, _SIGNAL)), 0)

    def _signal_and_read(self, pid: int, run_id: str, task: str, start: int) -> list[str]:
        try:
            os.kill(pid, _SIGNAL)
        except OSError:  # it has ended, or is another user's
            return []
        new: list[LogLine] = []
        give_up_at = time.monotonic() + _DUMP_TIMEOUT_S
        quiet_at = float("inf")
        while time.monotonic() < min(give_up_at, quiet_at):
            lines = self._runtime.read_log(run_id, task, start, _LINES, _BYTES).lines
            if lines:
                start += len(lines)
                new += [line for line in lines if line.stream == "stderr"]
                del new[:-_LINES]
                quiet_at = time.monotonic() + _QUIET_S if parse_faulthandler(new) else quiet_at
            else:
                time.sleep(_PAUSE_S)
        return parse_faulthandler(new)

    def _run_py_spy(self, pids: Sequence[int]) -> list[str]:
        if not self._py_spy:
            return [
                "Its stacks cannot be read: it has not announced that it writes them on SIGUSR1, and py-spy is not "
                "installed beside the agent (pip install 'trainyard[stacks]')."
            ]
        stacks: list[str] = []
        failure = ""
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
                failure = failure or f"py-spy did not read process {pid} within {_PY_SPY_S:g} s"
                continue
            except OSError as error:
                failure = f"{self._py_spy} cannot be started: {error.strerror}"
                break
            if done.returncode == 0:
                stacks += _of_py_spy(pid, done.stdout)
            else:
                failure = failure or _reason(done.stderr, pid)
        return stacks or [f"Its stacks cannot be read: {failure or 'it has no process any more'}."]


def parse_faulthandler(lines: Iterable[LogLine]) -> list[str]:
    """The lines of faulthandler among a program's stderr, the thread that handled the signal (the main one) first.
    Empty as long as there is no frame."""
    threads: list[list[str]] = []
    for line in lines:
        match = _THREAD.fullmatch(line.text)
        if match:
            thread = [line.text]
            threads.insert(0, thread) if match["current"] == "Current thread" else threads.append(thread)
            latest = thread
        elif threads and _FRAME.fullmatch(line.text):
            latest.append(line.text)
    texts = [text for thread in threads for text in thread]
    return texts if any(_FRAME.fullmatch(text) for text in texts) else []


def _of_py_spy(pid: int, output: str) -> list[str]:
    """py-spy's output, with the program alone instead of its header, which has all arguments."""
    lines = output.splitlines()
    first = next((at for at, line in enumerate(lines) if line.startswith("Thread ")), len(lines))
    name = procfs.program(pid).split("\n", 1)[0][:200]
    return [f"Process {pid}: {name}", *(line for line in lines[first:] if line.strip())]


def _reason(stderr: str, pid: int) -> str:
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    error = next((line for line in lines if "Error" in line), lines[0] if lines else "it failed")
    return f"py-spy of process {pid}: {error.removeprefix('Error: ').rstrip('.')}"


def _bounded(lines: Sequence[str]) -> str:
    text = "\n".join(lines)
    return text if len(text) <= LIMIT else text[: LIMIT - 20] + "\n(cut off here)"


def _find_py_spy() -> str:
    """py-spy beside our Python, or on the PATH; "" if it is not installed."""
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if os.access(beside, os.X_OK) else shutil.which("py-spy") or ""
