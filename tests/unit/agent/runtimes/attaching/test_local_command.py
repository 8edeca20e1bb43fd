"""Commands that the agent starts on its machine: what becomes of all that they have started, and who gets a Ctrl-C."""

import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from beds.waiting import until
from trainyard_agent.runtimes.attaching.local_command import LocalCommand, end_attachments
from trainyard_protocol.wire.attachments import Terminal

TERMINAL = Terminal(rows=33, columns=111, kind="xterm")

ESCAPES = {
    "in the foreground": "{sleep}",
    "in the background": "{sleep} & wait",
    "by job control": "set -m; {sleep} & {sleep} & wait",
    "in the foreground by job control": "set -m; {sleep}; true",
    "in a session of its own": "setsid {sleep} & wait",
    "forked twice": "(nohup {sleep} >/dev/null 2>&1 &) ; {sleep}",
    "without its variables": "(env -i setsid {sleep} &) ; {sleep}",
    "stopped": "{sleep} & sleep 0.3; kill -STOP $!; wait",
    "deaf": "trap '' HUP INT TERM QUIT; {sleep} & wait",
}
"""Lines of shell whose processes are elsewhere than in the shell's process group."""


class Sleepers:
    """Processes that nothing else on the machine looks like."""

    def __init__(self) -> None:
        self._mark = uuid.uuid4().hex
        self.command = f"bash -c 'exec -a {self._mark} sleep 1000'"

    def __call__(self) -> list[int]:
        return [process.pid for process in psutil.process_iter(["cmdline"]) if self._is_one(process)]

    def _is_one(self, process: psutil.Process) -> bool:
        words = process.info["cmdline"] or [""]
        return bool(words[0] == self._mark)

    def line(self, escape: str) -> str:
        return escape.format(sleep=self.command)

    def running(self, count: int) -> None:
        until(lambda: len(self()) >= count, f"{count} processes", 30)

    def kill(self) -> None:
        for pid in self():
            os.kill(pid, signal.SIGKILL)

    def gone(self) -> None:
        until(lambda: not self(), "the end of all of them", 30)


@pytest.fixture
def sleepers() -> Iterator[Sleepers]:
    found = Sleepers()
    yield found
    found.kill()


def end(command: LocalCommand) -> None:
    command.close()
    command.release()


def typed(line: str, on_terminal: bool, state_dir: Path) -> LocalCommand:
    """The line in a shell: typed at one with job control, or given to it."""
    if not on_terminal:
        return LocalCommand(["bash", "-c", line], None, state_dir)
    shell = LocalCommand(["bash", "--norc", "-i"], TERMINAL, state_dir)
    shell.write(f"{line}\n".encode())
    return shell


CASES = [(escape, number % 2 == 0) for number, escape in enumerate(ESCAPES)]
"""Every other one at a terminal."""


def all_gone(cases: Sequence[Sleepers]) -> None:
    """The processes of each way to escape have ended; else report all that live."""
    alive = []
    for (escape, on_terminal), sleepers in zip(CASES, cases, strict=True):
        try:
            sleepers.gone()
        except AssertionError as error:
            alive.append(f"{escape}{' at a terminal' if on_terminal else ''}: {error}")
            sleepers.kill()
    assert not alive, "\n".join(alive)


def test_close_ends_everything_below_a_command_wherever_it_went(tmp_path: Path) -> None:
    cases = [Sleepers() for _ in CASES]
    commands = []
    for (escape, on_terminal), sleepers in zip(CASES, cases, strict=True):
        line = sleepers.line(ESCAPES[escape])
        commands.append(typed(line, on_terminal, tmp_path))
        sleepers.running(line.count("exec -a"))
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(end, commands))
    all_gone(cases)


AGENT = """
import json, signal, sys
from pathlib import Path
from trainyard_agent.runtimes.attaching.local_command import LocalCommand
from trainyard_protocol.wire.attachments import Terminal

state_dir, lines = json.loads(sys.argv[1])
for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM):
    signal.signal(number, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT, signal.SIGUSR1])
commands = []
for line, on_terminal in lines:
    terminal = Terminal(rows=9, columns=99, kind="xterm") if on_terminal else None
    words = ["bash", "--norc", "-i"] if on_terminal else ["bash", "-c", line]
    commands.append(LocalCommand(words, terminal, Path(state_dir)))
    if on_terminal:
        commands[-1].write(line.encode() + b"\\n")
while (output := commands[0].read()) is not None:
    sys.stdout.buffer.write(output[1])
    sys.stdout.buffer.flush()
"""


def agent(state_dir: Path, *lines: tuple[str, bool]) -> "subprocess.Popen[bytes]":
    """An agent that ignores and blocks signals, as one that a shell has started in the background, and serves these
    lines, each at a terminal or not."""
    return subprocess.Popen([sys.executable, "-c", AGENT, json.dumps([str(state_dir), lines])], stdout=subprocess.PIPE)


def test_kill_of_the_agent_ends_everything_below_its_commands(tmp_path: Path) -> None:
    cases = [Sleepers() for _ in CASES]
    lines = [(sleepers.line(ESCAPES[way]), at_one) for (way, at_one), sleepers in zip(CASES, cases, strict=True)]
    with agent(tmp_path, *lines) as process:
        for (line, _), sleepers in zip(lines, cases, strict=True):
            sleepers.running(line.count("exec -a"))
        process.kill()
    all_gone(cases)


def test_next_agent_ends_what_outlived_the_agent_and_its_guard(tmp_path: Path, sleepers: Sleepers) -> None:
    line = sleepers.line("(setsid {sleep} &) ; {sleep}")
    with agent(tmp_path, (line, False)) as process, agent(tmp_path / "other", (line, False)) as other:
        sleepers.running(4)
        for served in (process, other):
            for guard in psutil.Process(served.pid).children():
                guard.suspend()
        process.kill()

        end_attachments(tmp_path)

        assert len(sleepers()) == 2, "those of another agent go on"
        for guard in psutil.Process(other.pid).children():
            guard.resume()
        other.kill()
    sleepers.gone()


def test_close_ends_what_outlived_its_guard(tmp_path: Path, sleepers: Sleepers) -> None:
    command = LocalCommand(["bash", "-c", sleepers.line("(setsid {sleep} &) ; {sleep}")], None, tmp_path)
    sleepers.running(2)
    guards = [
        process
        for process in psutil.process_iter(["ppid", "cmdline"])
        if process.info["ppid"] == os.getpid() and "guard.py" in " ".join(process.info["cmdline"] or [])
    ]
    assert len(guards) == 1
    guards[0].kill()
    while command.read() is not None:
        pass
    assert command.exit_code() == 128 + signal.SIGKILL
    end(command)
    sleepers.gone()


def test_command_ignores_and_blocks_no_signal_that_its_agent_does(tmp_path: Path) -> None:
    with agent(tmp_path, ("grep -E '^Sig(Blk|Ign)' /proc/self/status", False)) as process:
        out, _ = process.communicate(timeout=60)
    changeable = sum(1 << (number - 1) for number in signal.valid_signals())  # without those of the C library's own
    assert {int(line.split()[1], 16) & changeable for line in out.decode().splitlines()} == {0}


@pytest.mark.parametrize("program", ["sleep 1000", "bash --norc -c 'sleep 1000; echo after'"])
def test_ctrl_c_in_the_moment_of_a_start_reaches_the_command(tmp_path: Path, program: str) -> None:
    command = LocalCommand(["bash", "--norc", "-c", f"exec {program}"], TERMINAL, tmp_path)
    command.write(b"\x03")
    while command.read() is not None:
        pass
    assert command.exit_code() == 128 + signal.SIGINT
    end(command)


def test_command_that_is_not_there_says_so(tmp_path: Path) -> None:
    command = LocalCommand(["no-such-program"], None, tmp_path)
    output = command.read()
    assert output is not None
    assert (output[1], command.exit_code()) == (b"no-such-program: No such file or directory\n", 127)
    end(command)
