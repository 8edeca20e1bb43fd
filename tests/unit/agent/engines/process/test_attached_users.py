"""Commands beside a program that has a user of its own."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from beds.run_ids import unique_run
from beds.waiting import until
from contract.runtimes.runtime_labs import order
from trainyard_agent.engines.process.runtime import ProcessRuntime
from trainyard_agent.host import unix_users
from trainyard_agent.host.job_users import JobUsers
from trainyard_agent.runtimes.base import Launch
from trainyard_protocol.wire.attachments import Terminal

RUN, TASK = unique_run("c"), "master-replica-0"
FIRST = 400_000 + os.getpid() % 1000 * 10
SCRIPT = "id -u; setsid sleep 1000 & env -i setsid sleep 1000 & (nohup sleep 1000 >/dev/null 2>&1 &); sleep 1000"

pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]


@pytest.fixture
def runtime() -> Iterator[ProcessRuntime]:
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        state_dir = Path(directory) / "state"
        state_dir.mkdir()
        users = JobUsers(state_dir, range(FIRST, FIRST + 2))
        users.open()
        runtime = ProcessRuntime(state_dir, users)
        yield runtime
        runtime.remove(RUN)


def test_command_is_the_runs_users_and_ends_with_all_that_it_has_started(runtime: ProcessRuntime) -> None:
    user = runtime.place(order(RUN, TASK)).user
    assert user is not None
    assert user in range(FIRST, FIRST + 2)
    runtime.start(RUN, [Launch(TASK, ("/bin/sh", "-c", "exec sleep 900"), {}, (), 0)])
    until(lambda: runtime.processes(RUN, TASK), "its program")
    (program,) = runtime.processes(RUN, TASK)
    command = runtime.execute(RUN, TASK, ["sh", "-c", SCRIPT], Terminal(rows=9, columns=99, kind="xterm"))
    until(lambda: len(unix_users.processes(user)) == 6, "the program, the shell and four others")
    output = command.read()
    assert output is not None
    assert int(output[1]) == user
    command.close()
    command.release()
    assert unix_users.processes(user) == [program]
