"""The process runtime: environment, CPUs, output, and processes that try to escape."""

import fcntl
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from beds.run_ids import unique_run
from contract.runtimes.runtime_labs import Driver
from trainyard_agent.engines.process.runtime import replica_environment
from trainyard_agent.host import process_tags, procfs
from trainyard_agent.runtimes import fork_server
from trainyard_agent.runtimes.base import Launch, StartFailed
from trainyard_protocol.states import Reason

RUN, TASK, WORKER = unique_run("1"), "master-replica-0", "worker-replica-0"


def start(driver: Driver, *command: str, **options: Any) -> None:
    given: dict[str, Any] = {"environment": {}, "cpus": (), "memory_bytes": 0, **options}
    launch = Launch(task=TASK, command=command, **given)
    driver.place(RUN, TASK)
    driver.runtime.start(RUN, [launch])


def python(driver: Driver, source: str, **options: Any) -> list[str]:
    """Run a Python program to its end; its lines."""
    start(driver, sys.executable, "-c", source, **options)
    return driver.wait_for_log(RUN, TASK)


def test_replica_sees_a_clean_environment_of_its_own(
    driver: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAINYARD_TOKEN", "secret")
    monkeypatch.setenv("SOMETHING_ELSE", "x")
    cpu = max(os.sched_getaffinity(0))
    source = """
import json, os, sys
here = {"cwd": os.getcwd(), "input": sys.stdin.read(), "cpus": [*os.sched_getaffinity(0)]}
print(json.dumps({**os.environ, **here, "files": sorted(os.listdir("/proc/self/fd"))}))
"""
    (line,) = python(driver, source, environment={"TF_CONFIG": "{}"}, gpus=("GPU-1", "GPU-2"), cpus=(cpu,))

    seen = json.loads(line)
    directory = tmp_path / "state" / "runs" / RUN / TASK
    assert seen["TF_CONFIG"] == "{}"
    assert seen["CUDA_VISIBLE_DEVICES"] == "GPU-1,GPU-2"
    assert seen["PYTHONUNBUFFERED"] == "1"
    assert (seen["cwd"], seen["input"], seen["cpus"]) == (str(directory / "work"), "", [cpu])
    assert seen["files"] == ["0", "1", "2", "3"]  # 3 is the listing itself
    assert seen["PATH"].startswith(f"{Path(sys.executable).parent}{os.pathsep}")
    assert "SOMETHING_ELSE" not in seen
    assert '"secret"' not in line


def test_environment_hides_devices_that_were_not_granted() -> None:
    launch = Launch(TASK, ("/venv/bin/python",), {"CUDA_VISIBLE_DEVICES": "0"}, (), 0)
    environment = replica_environment(RUN, launch, Path("/d"), {"HOME": "/home/me", "PATH": "/bin"})
    assert environment["CUDA_VISIBLE_DEVICES"] == ""
    assert environment["HOME"] == "/home/me"
    assert environment["PATH"] == "/venv/bin:/bin"


def test_replica_that_prints_to_a_closed_pipe_ends_as_programs_do(driver: Driver) -> None:
    start(driver, "/bin/sh", "-c", "yes | head -n 1; kill -l >/dev/null; exit 4")
    assert driver.wait_for_log(RUN, TASK) == ["y"]


def test_replica_ignores_and_blocks_no_signal_that_its_agent_does(driver: Driver) -> None:
    """An agent that `nohup` or `&` of a script has started ignores what ends programs at a terminal."""
    fork_server.SHARED.close()
    numbers = (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGUSR1)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    try:
        start(driver, "/bin/sh", "-c", "exec grep -E '^Sig(Blk|Ign)' /proc/self/status")
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        fork_server.SHARED.close()
    of_programs = (1 << 31) - 1  # two more are the C library's own
    assert {int(line.split()[1], 16) & of_programs for line in driver.wait_for_log(RUN, TASK)} == {0}


def test_supervisor_killed_takes_its_program_and_its_orphans_along(driver: Driver) -> None:
    start(driver, "/bin/sh", "-c", "setsid sleep 1000 & echo up; exec sleep 1000")
    driver.until(lambda: driver.texts(RUN, TASK) == ["up"] and len(process_tags.tagged(RUN)) == 2)

    driver.lab.kill_supervisor(RUN, TASK)

    ended = driver.end(RUN, TASK)
    assert ended.reason is Reason.VANISHED
    driver.until(lambda: not process_tags.tagged(RUN))


_WRITER = r"""
import os, sys, time
def when(name):
    while not os.path.exists(f"{sys.argv[1]}/{name}"):
        time.sleep(0.01)
os.write(1, b"".join(b"early %d\n" % n for n in range(500)) + b"and ")
when("go")
os.write(1, b"so ")
for n in range(1000):
    os.write(1, b"late %d\n" % n)
os.write(2, b"10%\r50%\rthe password\nno newline")
os.close(os.open(f"{sys.argv[1]}/written", os.O_CREAT))
time.sleep(1000)
"""


@pytest.mark.parametrize("is_new", [False, True])
def test_supervisor_killed_loses_no_line_also_where_the_agent_is_a_new_one(
    driver: Driver, tmp_path: Path, is_new: bool
) -> None:
    secrets = {"SECRET": "password"}
    start(driver, sys.executable, "-c", _WRITER, str(tmp_path), secrets=secrets)
    driver.until(lambda: len(driver.texts(RUN, TASK)) == 500)
    driver.reports(RUN)  # as an agent looks several times a second
    if is_new:
        driver.lab.reopen().recover()
    (program,) = process_tags.tagged(RUN)
    os.kill(_parent(program), signal.SIGSTOP)
    (tmp_path / "go").touch()
    driver.until(lambda: (tmp_path / "written").exists())

    driver.lab.kill_supervisor(RUN, TASK)

    driver.wait_for_exits(RUN)
    log = driver.whole_log(RUN, TASK)
    assert [line.text for line in log.lines if line.stream == "stdout"] == [
        *(f"early {n}" for n in range(500)),
        "and so late 0",
        *(f"late {n}" for n in range(1, 1000)),
    ]
    assert [line.text for line in log.lines if line.stream == "stderr"] == ["the ***", "no newline"]
    assert driver.runtime.read_log(RUN, TASK, len(log.lines), 1, 1).missing == 0


def test_stop_reaches_what_tried_to_escape(driver: Driver, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    orphan = f"trap '' TERM HUP; echo $$ > {pid_file}.new; mv {pid_file}.new {pid_file}; while :; do sleep 1; done"
    start(driver, "/bin/sh", "-c", f'env -i setsid sh -c "{orphan.replace("$", chr(92) + "$")}" & sleep 1000')
    driver.until(pid_file.exists)
    pid = int(pid_file.read_text())
    assert Path(f"/proc/{pid}").exists()

    driver.runtime.stop(RUN, 0.1)
    driver.wait_for_log(RUN, TASK)

    assert not Path(f"/proc/{pid}").exists()


def test_stop_reaches_a_program_that_suspended_its_supervisor(driver: Driver) -> None:
    start(driver, "/bin/sh", "-c", "kill -STOP $PPID; exec sleep 1000")
    driver.until(lambda: any(procfs.is_stopped(_parent(pid)) for pid in process_tags.tagged(RUN)))

    driver.runtime.stop(RUN, 0.1)

    ended = driver.end(RUN, TASK)
    assert ended.reason is Reason.STOPPED


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().split()[3])


def test_launch_that_an_agent_left_half_done_starts_no_program(driver: Driver, tmp_path: Path) -> None:
    """kill -9 of the agent after its supervisors were made, before run.json said `launched`."""
    marker = tmp_path / "ran"
    driver.place(RUN, TASK)
    runtime, run = driver.lab.runtime, tmp_path / "state" / "runs" / RUN
    launch = {"command": ["/bin/touch", str(marker)], "environment": {}, "directory": str(run), "cpus": []}
    (run / TASK / "launch.json").write_text(json.dumps(launch))
    with (run / "gate").open("r+b") as gate:
        fcntl.flock(gate, fcntl.LOCK_EX)
        runtime._spawn(run / TASK, Launch(TASK, (), {}, (), 0))  # type: ignore[attr-defined]

    assert driver.lab.reopen().recover() == []
    assert not run.exists()
    assert not marker.exists()


def test_start_without_a_supervisor_for_one_replica_undoes_the_others(
    driver: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marker = tmp_path / "ran"
    driver.place(RUN, TASK, WORKER)
    spawn = driver.lab.runtime._spawn  # type: ignore[attr-defined]

    def fail_for_worker(directory: Path, launch: Launch) -> Any:
        if directory.name == WORKER:
            raise OSError(11, "Resource temporarily unavailable")
        return spawn(directory, launch)

    monkeypatch.setattr(driver.runtime, "_spawn", fail_for_worker)
    launches = [Launch(t, ("/bin/touch", str(marker)), {}, (), 0) for t in (TASK, WORKER)]

    with pytest.raises(StartFailed, match="temporarily unavailable"):
        driver.runtime.start(RUN, launches)

    assert driver.lab.remaining(RUN) == []
    assert not marker.exists()


def test_run_id_that_leads_elsewhere_is_refused(driver: Driver, tmp_path: Path) -> None:
    (tmp_path / "state" / "precious").mkdir()
    with pytest.raises(StartFailed):
        driver.place("../precious", TASK)
    driver.runtime.remove("../precious")
    assert driver.runtime.observe("../precious") == ()
    assert (tmp_path / "state" / "precious").is_dir()
