"""The program of a chaotic job: `python -m chaos_program SCRIPT --job-dir DIR`, or this file in a container.

SCRIPT is JSON: for each kind of task ("master", "worker") a list of steps (`plan.py` draws them):

    ["say", stream, lines, pause_s]    lines, one by one
    ["burst", stream, lines, width]    lines at once
    ["tail", stream]                   a line without a newline, the last of its stream
    ["sleep", seconds]
    ["deaf"]                           from now on SIGTERM is ignored
    ["polite", lines, code]            from now on SIGTERM makes it say some last lines and exit
    ["child", seconds]                 a child in a session of its own, deaf to SIGTERM, that outlives it
    ["die", signal, times]             by its own hand, in its first lives
    ["exit", code]

What really happened is written to DIR, whatever the service says of it. `truth/LIFE.jsonl` has a line for each
birth, for what is written of each stream by now, for a program of another run of this job that lived at the same
time, and for the end. `locks/LIFE` is locked for as long as this program or a child of it lives. Every line that
is printed says whose and which it is, and can be checked by itself.

The standard library only, and little of it: in containers it runs with `-S`.
"""

import fcntl
import json
import os
import signal
import sys
import time
from types import FrameType
from typing import Any, NoReturn

_STREAMS = {"stdout": 1, "stderr": 2}


def line(life: str, stream: str, number: int, width: int = 0) -> str:
    """A line that can be told from every other; filled up to `width` characters."""
    head = f"{life} {stream} {number}"
    if len(head) >= width:
        return head
    filler = f" {number * 2654435761 % 2**32:08x}"
    return (head + filler * ((width - len(head)) // len(filler) + 1))[:width]


class Life:
    def __init__(self, directory: str) -> None:
        self.run_id, self.task = _identity()
        born = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        self.name = f"{self.run_id}.{self.task}.{born:x}"
        self._written = dict.fromkeys(_STREAMS, 0)
        self._busy = False
        self._called = False
        self._farewell: tuple[int, int] | None = None
        for name in ("truth", "locks"):
            os.makedirs(f"{directory}/{name}", exist_ok=True)  # noqa: PTH103 - pathlib is slow to import
        self._truths = f"{directory}/truth"
        path = f"{self._truths}/{self.name}.jsonl"
        self._truth = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        self._note("born", pid=os.getpid(), run=self.run_id, task=self.task)
        self._lock(f"{directory}/locks")

    def run(self, steps: list[list[Any]]) -> NoReturn:
        for kind, *values in steps:
            getattr(self, f"do_{kind}")(*values)
        self.do_exit(0)

    def do_say(self, stream: str, lines: int, pause_s: float) -> None:
        for _ in range(lines):
            self.do_burst(stream, 1, 0)
            time.sleep(pause_s)

    def do_burst(self, stream: str, lines: int, width: int, end: str = "\n") -> None:
        self._busy = True
        first = self._written[stream]
        text = "".join(line(self.name, stream, n, width) + end for n in range(first, first + lines))
        rest = text.encode()
        while rest:
            rest = rest[os.write(_STREAMS[stream], rest) :]
        self._written[stream] += lines
        self._note("written", **self._written)
        self._busy = False
        if self._called:
            self._leave()

    def do_tail(self, stream: str) -> None:
        self.do_burst(stream, 1, 0, end="")

    def do_sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def do_deaf(self) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)

    def do_polite(self, lines: int, code: int) -> None:
        self._farewell = (lines, code)
        signal.signal(signal.SIGTERM, self._asked_to_leave)

    def do_child(self, seconds: float) -> None:
        """It holds our lock, and our streams."""
        if os.fork() == 0:
            os.setsid()
            self.do_deaf()
            time.sleep(seconds)
            os._exit(0)

    def do_die(self, number: int, times: int) -> None:
        lives = [name for name in os.listdir(self._truths) if f".{self.task}." in name]  # noqa: PTH208
        if len(lives) > times:
            return
        self._note("dies", signal=number)
        os.kill(os.getpid(), number)
        time.sleep(60)

    def do_exit(self, code: int) -> NoReturn:
        self._note("ended", code=code)
        os._exit(code)

    def _asked_to_leave(self, _number: int, _frame: FrameType | None) -> None:
        self._called = True
        if not self._busy:
            self._leave()

    def _leave(self) -> NoReturn:
        assert self._farewell is not None
        lines, code = self._farewell
        self._called = False
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self.do_burst("stdout", lines, 0)
        self.do_exit(code)

    def _note(self, what: str, **more: object) -> None:
        note = {"what": what, "t": time.clock_gettime(time.CLOCK_BOOTTIME), **more}
        os.write(self._truth, json.dumps(note).encode() + b"\n")

    def _lock(self, directory: str) -> None:
        """Locked before it has its name, so that nobody finds it unlocked while we live."""
        mine = os.open(f"{directory}/.{self.name}", os.O_RDWR | os.O_CREAT, 0o666)
        fcntl.flock(mine, fcntl.LOCK_EX)
        os.rename(f"{directory}/.{self.name}", f"{directory}/{self.name}")  # noqa: PTH104
        for other in os.listdir(directory):  # noqa: PTH208
            if other.startswith((".", f"{self.run_id}.")):
                continue
            found = os.open(f"{directory}/{other}", os.O_RDWR)
            try:
                fcntl.flock(found, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                self._note("overlap", other=other)
            os.close(found)


def _identity() -> tuple[str, str]:
    """The run (the first ten characters of its id) and the task, as the runtime tells them."""
    mark = os.environ.get("TRAINYARD_REPLICA", "")
    if mark:  # the process runtime
        run_id, _, task = mark.partition("/")
        return run_id[:10], task
    run_id = os.environ["HOSTNAME"].split("-")[-2]  # a container's name in its network
    place = json.loads(os.environ["CLUSTER_SPEC"])["task"]
    return run_id, f"{place['type']}-replica-{place['index']}"


def main() -> NoReturn:
    script, flag, directory = sys.argv[1:]
    assert flag == "--job-dir"
    life = Life(directory)
    life.run(json.loads(script)[life.task.partition("-")[0]])


if __name__ == "__main__":
    main()
