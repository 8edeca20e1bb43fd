"""Output of programs, which becomes the same log in every runtime."""

import pytest

from beds.run_ids import unique_run
from contract.runtimes.runtime_labs import Driver, Program
from trainyard_agent.engines.fake import Print
from trainyard_agent.runtimes.base import LogSlice
from trainyard_agent.runtimes.supervisor import MAX_LINE_BYTES, NOT_ENDED, PROGRESS_BYTES

CHIEF, RUN = "master-replica-0", unique_run("1")

MANY = (
    (r"b'\n\na\n\n'", ["", "", "a", ""]),
    (r"b'one\r\ntwo\r\n'", ["one", "two"]),  # DOS
    (r"b'bar\r   \rdone\n'", ["done"]),  # wiped
    (r"b'a\0b\x1b[1mc\n'", ["a\0b\x1b[1mc"]),
    (r"b'\xff\xfea\xc3\n\xe2\x82'", ["\ufffd\ufffda\ufffd", "\ufffd"]),  # no UTF-8, and no newline at the end
)
AWKWARD = {
    "many": (" + ".join(output for output, _ in MANY), [text for _, texts in MANY for text in texts]),
    "one MiB and more": (r"b'x' * ((2 << 20) + 5) + b'\n'", ["x" * (1 << 20)] * 2 + ["xxxxx"]),
    "a character on the limit": (r"('a' + 'é' * (1 << 19)).encode() + b'\n'", ["a" + "é" * ((1 << 19) - 1), "é"]),
}


def written(driver: Driver, python: str, log_quota: int = 0) -> LogSlice:
    """The whole log of a program that ends well."""
    driver.start(RUN, {CHIEF: Program(python=f"import os, sys, threading, time\n{python}")}, log_quota)
    log = driver.whole_log(RUN, CHIEF)
    ended = driver.end(RUN, CHIEF)
    assert ended.code == 0, [line.text for line in log.lines][-20:]
    return log


def texts(log: LogSlice, stream: str = "stdout") -> list[str]:
    return [line.text for line in log.lines if line.stream == stream]


@pytest.mark.parametrize("what", AWKWARD)
def test_awkward_output_has_a_defined_fate(real_driver: Driver, what: str) -> None:
    output, expected = AWKWARD[what]
    log = written(real_driver, f"sys.stdout.buffer.write({output})")
    assert texts(log) == expected
    long = [n for n, text in enumerate(expected[:-1]) if len(text.encode()) >= MAX_LINE_BYTES - 1]
    assert [n for n, line in enumerate(log.lines) if line.partial] == long


def test_progress_bar_is_its_last_state_and_some_on_the_way(host_driver: Driver) -> None:
    bar = "sys.stderr.write(''.join(f'\\rstep {n:3d}' for n in range(1000)) + '\\n')"
    each = PROGRESS_BYTES // 8
    log = written(host_driver, bar)
    assert texts(log, "stderr") == ["step " + f"{each - 1:3d}", "step 999"]
    assert [line.overwritten for line in log.lines] == [True, False]


def test_progress_bar_is_seen_to_move(host_driver: Driver) -> None:
    endless = "os.write(2, b'\\r%d' % n); n += 1"
    program = f"import os\nn = 0\nwhile True: {endless}"
    host_driver.start(RUN, {CHIEF: Program(python=program)})
    host_driver.until(lambda: len(host_driver.texts(RUN, CHIEF)) > 3)
    moves = [int(text) for text in host_driver.texts(RUN, CHIEF)]
    assert moves == sorted(moves)


def test_eight_writers_at_once_lose_and_mix_nothing(host_driver: Driver) -> None:
    log = written(
        host_driver,
        """
def write(who):
    for n in range(500):
        os.write(1 + n % 2, f"{who} {n}\\n".encode())
threads = [threading.Thread(target=write, args=(who,)) for who in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
""",
    )
    for who in range(8):
        for stream, first in (("stdout", 0), ("stderr", 1)):
            mine = [text for text in texts(log, stream) if text.startswith(f"{who} ")]
            assert mine == [f"{who} {n}" for n in range(first, 500, 2)]
    assert len(log.lines) == 8 * 500


def test_child_that_outlives_the_program_does_not_hold_its_log_open(host_driver: Driver) -> None:
    log = written(
        host_driver,
        """
ready, tell = os.pipe()
if os.fork() == 0:
    os.setsid()
    os.write(1, b"the child\\n")
    os.write(tell, b"x")
    while True:
        os.write(1, b"still there\\n")
        time.sleep(0.01)
os.read(ready, 1)
os.write(1, b"the program\\n")
""",
    )
    assert texts(log)[0] == "the child"
    assert "the program" in texts(log)


def test_program_that_closes_its_stdout_goes_on_and_so_does_its_stderr(host_driver: Driver) -> None:
    log = written(
        host_driver,
        """
os.write(1, b"out\\n")
os.close(1)
time.sleep(0.2)
for n in range(100): os.write(2, f"err {n}\\n".encode())
os.close(2)
time.sleep(0.2)
os._exit(0)
""",
    )
    assert texts(log) == ["out"]
    assert texts(log, "stderr") == [f"err {n}" for n in range(100)]


def test_what_is_in_the_pipe_when_the_program_ends_is_not_lost(host_driver: Driver) -> None:
    log = written(
        host_driver,
        """
total, line = 0, b"x" * 99 + b"\\n"
os.set_blocking(1, False)
try:
    while total < 64 << 20:
        total += os.write(1, line)
except BlockingIOError:
    pass
os.write(2, b"%d" % total)
os._exit(0)
""",
    )
    (total,) = texts(log, "stderr")
    printed = texts(log)
    assert sum(map(len, printed)) + len(printed) - (int(total) % 100 != 0) == int(total)


@pytest.mark.parametrize("how", ["ends", "is killed"])
def test_output_after_sigterm_is_not_lost(host_driver: Driver, how: str) -> None:
    last = "os._exit(3)" if how == "ends" else "time.sleep(1000)"
    program = f"""
import os, signal, time
def stop(*_):
    for n in range(5000): os.write(1, b"saving %d\\n" % n)
    {last}
signal.signal(signal.SIGTERM, stop)
os.write(1, b"up\\n")
while True: time.sleep(1000)
"""
    host_driver.start(RUN, {CHIEF: Program(python=program)})
    host_driver.until(lambda: host_driver.texts(RUN, CHIEF) == ["up"])

    host_driver.runtime.stop(RUN, 600.0)
    host_driver.until(lambda: len(host_driver.texts(RUN, CHIEF)) > 4990)
    if how == "is killed":
        host_driver.runtime.stop(RUN, 0.0)

    lines = [line for line in texts(host_driver.whole_log(RUN, CHIEF)) if not line.startswith(NOT_ENDED)]
    assert lines == ["up", *(f"saving {n}" for n in range(5000))]
    ended = host_driver.end(RUN, CHIEF)
    assert ended.code == (3 if how == "ends" else 137)


# The quota.


def test_log_is_cut_where_its_quota_ends(driver: Driver) -> None:
    printed = tuple(Print(f"line {n}") for n in range(200))
    driver.start(RUN, {CHIEF: Program(printed, code=0)}, log_quota=5000)

    log = driver.whole_log(RUN, CHIEF)

    assert log.cut
    assert 0 < len(log.lines) < 200
    assert texts(log) == [f"line {n}" for n in range(len(log.lines))]
    assert sum(len(line.text) for line in log.lines) <= 5000
    assert not driver.runtime.read_log(RUN, CHIEF, 0, 1, 1).cut  # it is the last word that says so
    driver.lab.reopen().recover()
    assert driver.whole_log(RUN, CHIEF) == log
    ended = driver.end(RUN, CHIEF)
    assert ended.code == 0


def test_program_that_writes_more_than_its_quota_is_never_held_up(host_driver: Driver) -> None:
    log = written(host_driver, "for n in range(200_000): print('line', n)", log_quota=100_000)
    assert log.cut
    assert texts(log) == [f"line {n}" for n in range(len(log.lines))]
    assert len(log.lines) > 1000
