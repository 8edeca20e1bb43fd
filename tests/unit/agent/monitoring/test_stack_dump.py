"""Stack dumps by signal where that is safe, and by py-spy otherwise."""

import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from beds.run_ids import unique_run
from trainyard_agent.engines.process.runtime import ProcessRuntime
from trainyard_agent.monitoring.stack_dump import LIMIT, StackDumper, parse_faulthandler
from trainyard_agent.runtimes.base import Launch
from trainyard_protocol.wire.logs import LogLine
from unit.agent.stub_server import run_order

RUN, TASK = unique_run("1"), "master-replica-0"
PY_SPY = shutil.which("py-spy") or str(Path(sys.executable).with_name("py-spy"))
needs_py_spy = pytest.mark.skipif(not Path(PY_SPY).exists(), reason="py-spy is not installed: it is an extra")

LISTENS = """
import faulthandler, signal
faulthandler.register(signal.SIGUSR1, all_threads=True)
"""
HANGS = """
import time
def read_from_a_dead_disk():
    print("hangs", flush=True)
    time.sleep(600)
read_from_a_dead_disk()
"""


@pytest.fixture
def runtime(tmp_path: Path) -> Iterator[ProcessRuntime]:
    runtime = ProcessRuntime(tmp_path)
    yield runtime
    runtime.remove(RUN)


@pytest.fixture
def started(runtime: ProcessRuntime, tmp_path: Path) -> Callable[[str], int]:
    """Starts a program and waits until it hangs; the number of lines in its log."""

    def start(source: str) -> int:
        program = tmp_path / "program.py"
        program.write_text(textwrap.dedent(source))
        runtime.place(run_order(RUN, TASK))
        runtime.start(RUN, [Launch(TASK, (sys.executable, str(program)), {}, (), 0)])
        while not (lines := runtime.read_log(RUN, TASK, 0, 10, 10_000).lines):
            assert runtime.observe(RUN)[0].exit is None
        return len(lines)

    return start


def is_alive(runtime: ProcessRuntime) -> bool:
    return runtime.observe(RUN)[0].exit is None


def test_program_that_announced_its_signal_is_asked(runtime: ProcessRuntime, started: Callable[[str], int]) -> None:
    lines = started(LISTENS + HANGS)
    text = StackDumper(runtime, py_spy="").dump(RUN, TASK, "SIGUSR1", lines)
    assert text.startswith("Current thread 0x")
    assert "in read_from_a_dead_disk" in text
    assert is_alive(runtime)


@needs_py_spy
@pytest.mark.parametrize(("source", "announced"), [(HANGS, "SIGUSR1"), (LISTENS + HANGS, "SIGUSR2")])
def test_any_other_program_is_never_sent_the_signal_and_looked_at_from_outside(
    runtime: ProcessRuntime, started: Callable[[str], int], source: str, announced: str
) -> None:
    lines = started(source)
    text = StackDumper(runtime, PY_SPY).dump(RUN, TASK, announced, lines)
    assert "    read_from_a_dead_disk (" in text
    assert is_alive(runtime)
    assert runtime.read_log(RUN, TASK, lines, 10, 10_000).lines == ()


@needs_py_spy
def test_program_that_takes_the_signal_for_something_else_is_looked_at_from_outside_as_well(
    runtime: ProcessRuntime, started: Callable[[str], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainyard_agent.monitoring.stack_dump._DUMP_TIMEOUT_S", 0.2)
    lines = started("import signal\nsignal.signal(signal.SIGUSR1, lambda *_: None)\n" + HANGS)
    text = StackDumper(runtime, PY_SPY).dump(RUN, TASK, "SIGUSR1", lines)
    assert "was sent SIGUSR1 and wrote no stacks" in text
    assert "    read_from_a_dead_disk (" in text


def test_where_nothing_can_be_told_it_says_why_and_what_is_kept_is_bounded(
    runtime: ProcessRuntime, started: Callable[[str], int], tmp_path: Path
) -> None:
    assert "does not see its processes" in StackDumper(runtime, "").dump(RUN, TASK, "", 0)
    lines = started(HANGS)
    assert "py-spy is not installed beside the agent" in StackDumper(runtime, "").dump(RUN, TASK, "", lines)
    fails = tmp_path / "fails"
    fails.write_text("#!/bin/sh\necho 'Error: Permission denied' >&2\nexit 1\n")
    fails.chmod(0o755)
    assert StackDumper(runtime, str(fails)).dump(RUN, TASK, "", lines).endswith(": Permission denied.")
    gone = StackDumper(runtime, str(tmp_path / "gone"))
    assert "cannot be started: No such file or directory." in gone.dump(RUN, TASK, "", lines)
    fails.write_text("#!/bin/sh\necho 'Thread 1 (idle)'\nyes '    f (x.py:1)' | head -n 100000\n")
    text = StackDumper(runtime, str(fails)).dump(RUN, TASK, "", lines)
    assert (len(text) <= LIMIT, text.endswith("\n(cut off here)")) == (True, True)
    assert is_alive(runtime)


def stderr(*texts: str) -> Sequence[LogLine]:
    return [LogLine(time="2026-11-20T12:00:00Z", stream="stderr", text=text) for text in texts]


def test_dumped_is_found_among_other_lines_the_current_thread_first() -> None:
    lines = stderr(
        "WARNING something else",
        '  File "/x.py", line 1 in of_no_thread',
        "Thread 0x00007f0000000002 (most recent call first):",
        '  File "/usr/lib/python3.11/threading.py", line 320 in wait',
        "",
        "WARNING something else",
        "Current thread 0x00007f0000000001 (most recent call first):",
        '  File "/x.py", line 88 in load',
        "  ...",
        "done",
    )
    assert parse_faulthandler(lines) == [
        "Current thread 0x00007f0000000001 (most recent call first):",
        '  File "/x.py", line 88 in load',
        "  ...",
        "Thread 0x00007f0000000002 (most recent call first):",
        '  File "/usr/lib/python3.11/threading.py", line 320 in wait',
    ]
    assert parse_faulthandler(stderr("Thread 0x1 (most recent call first):")) == []
    assert parse_faulthandler(stderr("nothing", "of it")) == []
