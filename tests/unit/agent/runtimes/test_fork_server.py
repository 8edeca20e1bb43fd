import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from beds.waiting import until
from trainyard_agent.runtimes.fork_server import Forked, ForkServer, ForkServerError
from trainyard_agent.staging import archive_check


@contextmanager
def started(server: ForkServer, *arguments: str) -> Iterator[tuple[Forked, int]]:
    """An inspection of an archive, and the end of the pipe that it writes to."""
    ours, its = os.pipe()
    nothing = os.open(os.devnull, os.O_RDWR)
    process = server.start(archive_check.__name__, arguments, [nothing, its, its])
    os.close(its)
    os.close(nothing)
    try:
        yield process, ours
    finally:
        process.kill()
        process.wait()
        process.close()
        os.close(ours)


def everything(pipe: int) -> str:
    with open(pipe, "rb", closefd=False) as file:
        return file.read().decode()


def test_forked_process_has_its_files_a_session_and_a_command_line_and_outlives_the_fork_server(tmp_path: Path) -> None:
    """An agent that is killed leaves its supervisors, and `ps` says whose they are."""
    os.mkfifo(tmp_path / "p.zip")
    server = ForkServer()
    with started(server, str(tmp_path / "p.zip"), "30") as (process, pipe):
        server.close()
        proc = Path("/proc") / str(process.pid)
        # It waits for a writer, and ends soon after one has come.
        until(lambda: "p.zip" in (proc / "cmdline").read_text(), "its command line")
        words = [word for word in (proc / "cmdline").read_text().split("\0") if word]
        assert words[1:] == [archive_check.__file__, str(tmp_path / "p.zip"), "30"]
        assert os.getsid(process.pid) == process.pid
        assert {int(file.name) for file in (proc / "fd").iterdir()} <= {0, 1, 2, 3}
        os.close(os.open(tmp_path / "p.zip", os.O_WRONLY))
        assert '"refused": "its archive cannot be read' in everything(pipe)


def test_fork_server_that_was_killed_is_started_again_and_a_program_that_fails_says_why() -> None:
    server = ForkServer()
    try:
        for _ in range(2):
            with started(server, "/nowhere.zip", "30") as (_, pipe):
                assert "No such file or directory" in everything(pipe)
            os.kill(server._pid, signal.SIGKILL)
            os.waitid(os.P_PID, server._pid, os.WEXITED | os.WNOWAIT)
        with started(server, "/nowhere.zip", "many") as (_, pipe):
            assert "invalid literal for int()" in everything(pipe)
        with pytest.raises(ForkServerError, match="No module named"):
            server.start("trainyard_agent.none", (), ())
    finally:
        server.close()
