"""The inside of a container of a replica: its environment, its isolation, its log and its stacks."""

import os
import signal
import uuid
from pathlib import Path

import pytest

from beds.engines import OwnEngine
from integration.engine.runs import CHIEF, WORKER, Host, host_on
from trainyard_agent.engines.docker import disk_limit, spec
from trainyard_agent.engines.docker.streams.attachments import ContainerAttachments
from trainyard_agent.host import procfs
from trainyard_agent.monitoring.stack_dump import StackDumper
from trainyard_agent.runtimes.base import Keep, Launch, ProgramUser, StartFailed
from trainyard_agent.runtimes.installing import PACKAGES
from trainyard_agent.runtimes.replica_names import host_name
from trainyard_protocol.job.cluster import Task
from trainyard_protocol.states import Reason

_GB = 10**9
LISTENS = """
import faulthandler, signal, time
def read_from_a_dead_disk():
    time.sleep(600)
faulthandler.register(signal.SIGUSR1)
print("hangs", flush=True)
read_from_a_dead_disk()
"""
BARS = """
import os, time
print(*range(10), sep="\\n", flush=True)
while not os.path.exists("/data/go"): time.sleep(0.05)
for n in range(100): print(*(f"{n} {k}" for k in range(10_000)), sep="\\r")
print("end")
"""


def test_attachments_end_from_inside_where_the_agent_does_not_see_their_processes(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent that is not root, or in another place than its engine; at the end of a command and after a kill."""
    monkeypatch.setattr(ContainerAttachments, "_is_seen", lambda *_: False)
    run_id = host.start("echo up; exec sleep 1000")
    host.until(lambda: host.printed(run_id) == ["up"])
    (container,) = host.engine.client().containers.list(filters={"label": f"{spec.RUN}={run_id}"})

    def sleepers() -> int:
        return sum("sleep 985" in words for _, words in container.top(ps_args="-eo pid,args")["Processes"])

    leaves = "(setsid sleep 985 &); (trap '' HUP; nohup sleep 985 >/dev/null 2>&1 &); echo here"
    for is_killed in (False, True):
        command = host.runtime.execute(run_id, CHIEF, ["sh", "-c", leaves], None)
        assert command.read() is not None
        host.until(lambda: sleepers() == 2)
        if is_killed:
            monkeypatch.setattr(command, "_end", lambda _: None)
            host.new_agent()
        command.close()
        command.release()
        host.until(lambda: not sleepers())
    host.until(lambda: host.runtime._files.attachments() == [])


def test_replicas_reach_each_other_by_name_and_no_other_run_does(host: Host) -> None:
    listen = (
        "import socket; s = socket.create_server(('', 2222)); print('up', flush=True)\n"
        "while True: s.accept()[0].sendall(b'hello')"
    )
    run_id = host.start_gang({CHIEF: f'exec python3 -c "{listen}"', WORKER: "sleep 1000"})
    host.until(lambda: host.printed(run_id) == ["up"])
    chief = host_name(run_id, Task.parse(CHIEF))
    inside = host.engine.client().containers.list(filters={"label": [f"{spec.RUN}={run_id}", f"{spec.TASK}={WORKER}"]})
    ask = f"import socket; print(socket.create_connection(('{chief}', 2222), 5).recv(9))"
    assert b"hello" in inside[0].exec_run(["python3", "-c", ask]).output

    look_up = ["python3", "-c", f"import socket; print(socket.gethostbyname('{chief}'))"]
    address = inside[0].exec_run(look_up).output
    assert isinstance(address, bytes)
    ip = address.decode().strip()
    stranger = (
        "import socket\n"
        f"for name in ('{chief}', '{ip}'):\n"
        "    try: socket.create_connection((name, 2222), 1); print('reached')\n"
        "    except OSError as error: print('refused')\n"
    )
    assert host.run(f'exec python3 -c "{stranger}"') == ["refused", "refused"]


def test_replica_finds_peers_that_have_not_started_yet(host: Host) -> None:
    """The last of many is looked up by all, as the first thing that they do."""
    tasks = [CHIEF, *(f"worker-replica-{n}" for n in range(3))]
    order = host.order(*tasks)
    names = [host_name(order.run_id, Task.parse(task)) for task in tasks]
    host.runtime.place(order)
    look = "; ".join(f"getent hosts {name} >/dev/null || echo {name} is unknown" for name in reversed(names))
    host.runtime.start(order.run_id, [host.launch(look, task) for task in tasks])
    assert [host.log(order.run_id, task) for task in tasks] == [[]] * len(tasks)
    host.runtime.remove(order.run_id)


def test_replica_is_called_by_its_host_name_and_that_is_reachable(host: Host) -> None:
    """JAX's collectives listen at the address of the machine's own name."""
    program = "import socket; n = socket.gethostname(); print(n, not socket.gethostbyname(n).startswith('127.'))"
    run_id = host.start(f'exec python3 -c "{program}"', task=WORKER)
    assert host.log(run_id, WORKER) == [f"{host_name(run_id, Task.parse(WORKER))} True"]


def test_replica_has_no_privilege_and_cannot_gain_any(host: Host) -> None:
    printed = host.run("grep -E '^(CapEff|CapBnd|NoNewPrivs|Seccomp):' /proc/self/status; ls /dev; id -u")
    status = dict(line.split(":\t") for line in printed if ":\t" in line)
    assert status["NoNewPrivs"] == "1"
    assert status["Seccomp"] == "2"
    allowed = int(status["CapBnd"], 16)
    assert int(status["CapEff"], 16) & ~allowed == 0
    for forbidden in (12, 13, 16, 19, 21, 27):  # NET_ADMIN, NET_RAW, SYS_MODULE, SYS_PTRACE, SYS_ADMIN, MKNOD
        assert not allowed >> forbidden & 1
    assert "kmsg" not in printed
    assert "mem" not in printed


def test_replica_is_held_to_its_cpus_memory_and_shared_memory(host: Host) -> None:
    cpu = max(os.sched_getaffinity(0))
    program = (
        "import os; print(sorted(os.sched_getaffinity(0)));s = os.statvfs('/dev/shm'); print(s.f_blocks * s.f_frsize)"
    )
    printed = host.run(f'exec python3 -c "{program}"', cpus=(cpu,), memory_bytes=200 << 20)
    assert printed == [f"[{cpu}]", str(100 << 20)]


def test_replica_that_fills_its_disk_is_killed_and_says_so(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_limit, "MEASURE_S", 0.1)
    image = host.engine.build(f"volume-{uuid.uuid4().hex[:8]}", f"FROM {host.engine.base_image}\nVOLUME /data\n")
    host.disk_bytes = 20 * 10**6
    host.new_agent()
    fill = "head -c 30000000 /dev/zero > {}; sleep 1000"
    try:
        layer = host.start(fill.format("/tmp/big"))
        volume = host.start(fill.format("/data/big"), image=image)
        small = host.start("head -c 3000000 /dev/zero > /tmp/small; sleep 1000")
        for run_id in (layer, volume):
            ended = host.end(run_id)
            assert (ended.code, ended.reason, ended.after_stop) == (137, Reason.OUT_OF_DISK, False)
            assert ended.message.startswith("It is 0.02 GB, the agent's --disk-gb;")
        assert host.running(small)
    finally:
        for run_id in (layer, volume, small):
            host.runtime.remove(run_id)
        host.engine.client().images.remove(image)


def test_fork_bomb_stays_in_its_container_and_is_removed_with_it(host: Host) -> None:
    bomb = "import os,sys\nwhile True:\n    try: os.fork()\n    except OSError: print('full', flush=True); break"
    run_id = host.start(f'python3 -c "{bomb}"; sleep 1000', memory_bytes=_GB)
    host.until(lambda: "full" in host.printed(run_id))
    assert host.running(run_id)
    host.runtime.stop(run_id, 0.0)
    assert host.end(run_id).after_stop
    host.runtime.remove(run_id)
    assert host.remaining() == []


def test_zombies_are_reaped(host: Host) -> None:
    script = "(sh -c 'sleep 0.1 &') ; sleep 0.5; grep -l '^State:.Z' /proc/[0-9]*/status 2>/dev/null | wc -l"
    assert host.run(script) == ["0"]


def test_user_in_place_of_root_finds_a_home_and_the_images_programs(host: Host, tmp_path: Path) -> None:
    program = (
        "import getpass, os, pathlib\n"
        "pathlib.Path('output').write_text('in its directory')\n"
        "pathlib.Path('~/.cache/jax').expanduser().mkdir(parents=True)\n"
        "print(getpass.getuser(), os.getuid(), os.getgid(), os.getgroups(), pathlib.Path.cwd())\n"
    )
    image = host.engine.build(
        f"roots-{uuid.uuid4().hex[:8]}",
        f"FROM {host.engine.base_image}\nWORKDIR /home/app/src\nCOPY program.py .\n"
        "RUN chown -R 1000:1000 /home/app && chmod 0700 /root /home/app /home/app/src\n",
        {"program.py": program.encode()},
    )
    place = tmp_path / "job"
    place.mkdir()
    os.chown(place, 4321, 8765)
    job_dir = {"job_dir": "/root/state/job", "job_dir_source": str(place)}
    script = "cd /home/app/src && python3 program.py && touch /root/state/job/model && grep CapBnd /proc/self/status"
    try:
        printed = host.run(script, image=image, user=ProgramUser(4321, 8765, "ann"), **job_dir)
    finally:
        host.engine.client().images.remove(image, force=True)
    assert printed == ["ann 4321 8765 [8765] /home/app/src", "CapBnd:\t0000000000000000"]
    assert ((place / "model").stat().st_uid, (place / "model").stat().st_gid) == (4321, 8765)


def test_program_that_fails_says_which_user_it_had_in_place_of_the_images(host: Host) -> None:
    run_id = host.start("touch /etc/x", user=ProgramUser(4321, 8765, "ann"))
    host.new_agent()
    message = host.end(run_id).message
    assert message.startswith("It exited with a non-zero status of 1. It ran as user 4321:8765, not as its image's")


def test_job_dir_inside_that_of_a_running_job_is_reached_through_it(host: Host, tmp_path: Path) -> None:
    inner = tmp_path / "sweep" / "1"
    inner.mkdir(parents=True)
    outer = host.start("sleep 1000", job_dir="/data", job_dir_source=str(inner.parent))
    host.new_agent()
    script = "rmdir /data/1 && ln -s /etc /data/1"  # no mount of its own
    assert host.run(script, job_dir="/data/1", job_dir_source=str(inner)) == []
    assert host.running(outer)
    assert inner.is_symlink()


def test_job_dir_that_became_a_link_is_not_mounted(host: Host, tmp_path: Path) -> None:
    (tmp_path / "job").symlink_to("/etc")
    with pytest.raises(StartFailed, match="was replaced by a link"):
        host.start("cat /data/shadow", job_dir="/data", job_dir_source=f"{tmp_path}/job")
    assert host.remaining() == []


def test_job_dir_is_the_only_place_of_the_host(host: Host, tmp_path: Path) -> None:
    place = tmp_path / "job"
    place.mkdir()
    host.run(
        "echo model > /data/out/model && ! ls /var/run/docker.sock 2>/dev/null",
        job_dir="/data/out",
        job_dir_source=str(place),
    )
    assert (place / "model").read_text() == "model\n"


def test_packages_are_read_only(host: Host, tmp_path: Path) -> None:
    place = tmp_path / "packages"
    (place / "bin").mkdir(parents=True)
    script = f"touch {PACKAGES}/x 2>/dev/null || echo refused; echo $PATH; echo $VIRTUAL_ENV"
    printed = host.run(script, packages=str(place))
    assert printed[0] == "refused"
    assert printed[1].startswith(f"{PACKAGES}/bin:")
    assert printed[2] == PACKAGES
    assert list(place.iterdir()) == [place / "bin"]


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("/nowhere/program", "There is no program '/nowhere/program' in its image."),
        ("no-such-program", "There is no program 'no-such-program' in its image."),
        ("/etc", "/etc is a directory in its image."),
        ("/etc/passwd", "/etc/passwd is not executable in its image."),
    ],
)
def test_entry_point_that_cannot_be_executed_starts_nothing(host: Host, program: str, message: str) -> None:
    order = host.order(CHIEF, WORKER)
    host.runtime.place(order)
    broken = host.launch("true", WORKER, entrypoint=(program,))
    with pytest.raises(StartFailed) as failure:
        host.runtime.start(order.run_id, [host.launch("sleep 1000"), broken])
    assert (failure.value.task, failure.value.message) == (WORKER, message)
    assert failure.value.reason is Reason.START_FAILED
    assert host.remaining() == []


def test_image_without_a_shell_keeps_nothing(host: Host) -> None:
    image = host.engine.build("trainyard-test-no-shell", "FROM scratch\nCOPY run /run\n", {"run": b"a program"})
    order = host.order(CHIEF)
    host.runtime.place(order)
    launch = host.launch("true", CHIEF, entrypoint=("/run",), image=image, keep=Keep(60, "j"))
    with pytest.raises(StartFailed, match="'/bin/sh' in its image, and keepOnFailure needs one"):
        host.runtime.start(order.run_id, [launch])


def test_image_that_was_removed_after_it_was_staged_is_the_machines_fault(host: Host) -> None:
    order = host.order(CHIEF)
    host.runtime.place(order)
    with pytest.raises(StartFailed) as failure:
        host.runtime.start(order.run_id, [host.launch("true", image="sha256:" + "0" * 64)])
    assert failure.value.reason is Reason.HOST_FAILED
    assert host.remaining() == []


def test_entry_point_may_be_relative_to_the_images_directory(host: Host) -> None:
    image = host.engine.build(
        "trainyard-test-relative",
        f'FROM {host.engine.base_image}\nWORKDIR /app\nCOPY run bin/run\nENTRYPOINT ["bin/run"]\n',
        {"run": b"#!/bin/sh\necho ran in $PWD\n"},
    )
    order = host.order(CHIEF)
    host.runtime.place(order)
    host.runtime.start(order.run_id, [Launch(CHIEF, (), {}, (), 0, image=image)])
    assert host.log(order.run_id) == ["ran in /app"]
    host.runtime.remove(order.run_id)
    host.engine.client().images.remove(image)


def test_program_in_a_container_is_found_and_writes_its_stacks_when_it_is_asked(host: Host) -> None:
    run_id = host.start(f"exec python3 -c '{LISTENS}'")
    host.until(lambda: host.printed(run_id))
    pids = host.runtime.processes(run_id, CHIEF)
    if not pids:
        pytest.skip("the engine's containers are in another pid namespace than this test")
    assert any(procfs.catches(pid, signal.SIGUSR1) for pid in pids)
    stacks = StackDumper(host.runtime, py_spy="").dump(run_id, CHIEF, "SIGUSR1", len(host.printed(run_id)))
    assert "in read_from_a_dead_disk" in stacks
    assert host.running(run_id)
    host.runtime.remove(run_id)
    assert host.runtime.processes(run_id, CHIEF) == ()


def test_engine_that_rotates_logs_by_default_loses_no_line(own_engine: OwnEngine, tmp_path: Path) -> None:
    own_engine.restart(log_opts={"max-size": "4k", "max-file": "2"})
    with host_on(own_engine, tmp_path / "state") as host:
        assert host.run("i=0; while [ $i -lt 600 ]; do echo $i; i=$((i+1)); done") == [str(n) for n in range(600)]


def test_log_whose_beginning_the_engine_dropped_while_no_agent_looked_is_cut(host: Host, tmp_path: Path) -> None:
    """Lines that are overwritten again and again are much to the engine, and little to us."""
    data = tmp_path / "data"
    data.mkdir()
    order = host.order("master-replica-0").model_copy(update={"log_quota_bytes": 1 << 20})
    launch = host.launch(
        f"exec python3 -c '{BARS}'", job_dir="/data", job_dir_source=str(data), log_quota_bytes=1 << 20
    )
    host.runtime.place(order)
    host.runtime.start(order.run_id, [launch])
    host.until(lambda: len(host.printed(order.run_id)) == 10)
    host.runtime.close()
    (data / "go").touch()
    (container,) = host.engine.client().containers.list(filters={"label": f"trainyard.run={order.run_id}"})
    assert container.wait()["StatusCode"] == 0

    host.new_agent()

    assert host.log(order.run_id) == [str(n) for n in range(10)]
    assert host.runtime.read_log(order.run_id, "master-replica-0", 0, 100, 1 << 20).cut
