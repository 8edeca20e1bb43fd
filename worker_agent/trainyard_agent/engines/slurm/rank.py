"""The program of each task of a job: `python -I -S rank.py RUN_DIR`, started by srun on the nodes.

It needs the standard library, this package's files and the shared file system, and nothing of the agent. Two processes:
the guard, which srun started, and the supervisor of the replica (`runtimes/supervisor.py`), which writes the files of
its directory. If the supervisor is killed, the guard ends what it left and completes its log from the spools
(`runtimes/spool.py`), which both have open.

In the run's directory: tasks.json (the task of each rank), `addresses` (one file of each rank: each takes a free port
of its node and waits for those of all others), stop.json (`serial`, and the seconds until SIGKILL). Clocks of nodes may
differ, so no time in these files is compared. In the replica's directory, beside the supervisor's files:

    begun         made by the first rank that comes: another one ends at once
    secrets.json  read and removed: the job's secrets, for its owner alone
    usage.json    written every few seconds: CPU time and memory
    here.json     written once the agent asks for signs of life, by ask.json in the run's directory
    lost.json     read: the agent has given this replica up. Slurm does not stop a node that is cut off, so this does
"""

import contextlib
import json
import os
import select
import shutil
import signal
import socket
import sys
import time

if __name__ == "__main__":  # started by its path, without site-packages
    sys.path.append(__file__.rpartition("/trainyard_agent/")[0])

from trainyard_agent.engines.slurm import containers, setup
from trainyard_agent.host import procfs
from trainyard_agent.host import temporary as temporary_directory
from trainyard_agent.runtimes import ports
from trainyard_agent.runtimes.masking import Mask
from trainyard_agent.runtimes.spool import STREAMS, Spool
from trainyard_agent.runtimes.supervisor import Supervisor, adopt_orphans, descendants, finish_log, rfc3339

_DEVICES = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK")
_PAUSE_S = 0.02
_TAKEN_S, _KILLED_S = 0.2, 1.0
_USAGE, _LOST, _STOP, _BEGUN = "usage.json", "lost.json", "stop.json", "begun"
_ASK, _HERE = "ask.json", "here.json"


class RankSupervisor(Supervisor):
    """The supervisor on a node of Slurm: stops come by file, and a SIGTERM is Slurm's."""

    def __init__(self, directory: str, launch: dict[str, object], mask: Mask, spools: dict[str, Spool]) -> None:
        super().__init__(directory, launch, mask, spools)
        self._run = os.path.dirname(directory)  # noqa: PTH120 - pathlib is slow to import
        self._poll_s = float(str(launch["poll_s"]))
        self._usage_s = float(str(launch["usage_s"]))
        self._grace_s = float(str(launch["grace_s"]))
        self._polled = self._measured = float("-inf")
        self._serial = 0
        self._taken = self._has_answered = False
        self._kills = _kills_for_memory()

    def stop(self) -> None:
        """Slurm takes the replica away. It has sent SIGTERM to every process of it: once is enough."""
        if not self._is_stopping:
            self._taken, self._stopped_at = True, time.monotonic()
        self._kill_at = min(self._kill_at, time.monotonic() + self._grace_s)

    @property
    def _is_stopping(self) -> bool:  # replaces that of the supervisor, which knows no stop of Slurm's
        return self._stopping or self._taken

    def end_before_start(self) -> None:
        self._taken = not read(self._run, _STOP)
        self._note_end({"never_started": True})
        self._record_exit()
        self._notes.add("done.json", {"lines": 0})
        self._settle()
        self._notes.close()

    def _start(self) -> str:
        if not self._launch["command"]:
            return containers.NO_PROGRAM
        command, environment = self._launch["command"], self._launch["environment"]
        assert isinstance(command, list)
        assert isinstance(environment, dict)
        program = shutil.which(command[0], path=environment.get("PATH", os.defpath))
        if program is None:
            return f"There is no program {command[0]!r} on {_node()}"
        self._launch["command"] = [program, *command[1:]]
        return super()._start()

    def _wait_and_read(self, timeout: float) -> None:
        now = time.monotonic()
        if now - self._polled >= self._poll_s and not self._ended:
            self._polled = now
            self._poll()
        if now - self._measured >= self._usage_s and self._program and not self._ended:
            self._measured = now
            me = os.getpid()
            tree = procfs.tree(me)[1:]
            cpu_s = procfs.cpu_s(me, own=False) + sum(map(procfs.cpu_s, tree))
            with contextlib.suppress(OSError):  # a full disk, or a run that was removed
                write(self._directory, _USAGE, {"cpu_s": cpu_s, "memory": sum(map(procfs.resident_bytes, tree))})
        super()._wait_and_read(min(timeout, self._poll_s))

    def _poll(self) -> None:
        stop = read(self._run, _STOP)
        serial = int(stop.get("serial", 0))
        if serial > self._serial:
            self._serial = serial
            self._kill_at = min(self._kill_at, time.monotonic() + float(stop["grace_s"]))
            if not self._stopping and self._program and not self._end:
                self._stopping = True
                self._stopped_at = min(self._stopped_at, time.monotonic())
                # Apptainer passes a signal on to the program, which is in its group too.
                send = os.kill if "container" in self._launch else os.killpg
                with contextlib.suppress(ProcessLookupError):
                    send(self._program, signal.SIGTERM)
        if not self._has_answered and read(self._run, _ASK):
            self._has_answered = True
            with contextlib.suppress(OSError):  # a full disk
                write(self._directory, _HERE, {"node": _node()})
        if is_given_up(self._directory):
            self._stopping, self._kill_at = True, 0.0

    def _note_end(self, how: dict[str, object]) -> None:
        if not self._stopping and "status" in how:
            self._wait_for_slurm(_KILLED_S if int(str(how["status"])) < 0 else _TAKEN_S)
        out_of_memory = how.get("status") == -signal.SIGKILL and _kills_for_memory() > self._kills
        super()._note_end({**how, "taken": self._taken, "out_of_memory": out_of_memory})

    def _wait_for_slurm(self, seconds: float) -> None:
        """Wait for a signal of Slurm, which ends one process after the other: the program may die of it first. If this
        process is killed meanwhile, no end is recorded, and that of the job counts."""
        give_up_at = time.monotonic() + seconds
        while not self._taken and (left := give_up_at - time.monotonic()) > 0:
            if select.select([self._wake_fd], [], [], left)[0] and signal.SIGTERM in os.read(self._wake_fd, 512):
                self.stop()


def is_given_up(directory: str) -> bool:
    """Whether the agent has reported the end of this replica, or removed its run."""
    try:
        names = os.listdir(directory)  # noqa: PTH208 - asks the file server, where a look-up may be cached
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return _LOST in names


def read(directory: str, name: str) -> dict[str, str]:
    """A JSON object of the shared file system; empty for a missing or damaged one."""
    try:
        if name not in os.listdir(directory):  # noqa: PTH208 - see above
            return {}
        with open(f"{directory}/{name}", encoding="utf-8") as file:  # noqa: PTH123
            value = json.load(file)
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def write(directory: str, name: str, value: object) -> None:
    """Replace a file atomically. Raises OSError."""
    with open(f"{directory}/{name}.new", "w", encoding="utf-8") as file:  # noqa: PTH123
        json.dump(value, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(f"{directory}/{name}.new", f"{directory}/{name}")  # noqa: PTH105


def meet(run: str, rank: int, tasks: list[str]) -> dict[str, tuple[str, int]]:
    """The host and port of each task, once all ranks have theirs; empty if the run is stopped before."""
    others = {port for port in range(1 << 16) if port % len(tasks) != rank}  # ranks of one node never collide
    (port,) = ports.free_ports(1, others)
    write(f"{run}/addresses", str(rank), {"host": _host(), "port": port, "node": _node()})
    names = set(map(str, range(len(tasks))))
    pause = _PAUSE_S
    while not names <= set(os.listdir(f"{run}/addresses")):  # noqa: PTH208
        if signal.sigtimedwait([signal.SIGTERM], pause) or read(run, _STOP):
            return {}
        pause = min(1.0, pause * 1.5)
    peers = [read(f"{run}/addresses", str(other)) for other in range(len(tasks))]
    return {task: (peer["host"], int(peer["port"])) for task, peer in zip(tasks, peers, strict=True)}


def with_addresses(
    environment: dict[str, str], placeholders: dict[str, str], addresses: dict[str, tuple[str, int]]
) -> dict[str, str]:
    """The variables with the real host and port in place of each placeholder."""
    words = {}
    for task, text in placeholders.items():
        host, _, port = text.rpartition(":")
        words[host], words[port] = addresses[task][0], str(addresses[task][1])
    result = {}
    for name, value in environment.items():
        for word, real in words.items():
            value = value.replace(word, real)
        result[name] = value
    return result


def _host() -> str:
    """The name of this node that others know: Slurm's, else the machine's own."""
    name = _node()
    try:
        socket.getaddrinfo(name, None)
    except OSError:
        return socket.gethostname()
    return name


def _node() -> str:
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname()


def _kills_for_memory() -> int:
    """Number of processes of this cgroup that the kernel killed at its memory limit, in either version of cgroups."""
    try:
        with open("/proc/self/cgroup", encoding="utf-8") as file:  # noqa: PTH123
            groups = [line.strip().split(":", 2) for line in file]
    except OSError:
        return 0
    files = [f"/sys/fs/cgroup{path}/memory.events" for number, kind, path in groups if not kind]
    files += [f"/sys/fs/cgroup/memory{path}/memory.oom_control" for _, kind, path in groups if kind == "memory"]
    count = 0
    for name in files:
        with contextlib.suppress(OSError, ValueError), open(name, encoding="utf-8") as file:  # noqa: PTH123
            count += sum(int(line.split()[1]) for line in file if line.startswith("oom_kill "))
    return count


def _secrets(directory: str) -> tuple[dict[str, str], Mask]:
    """The further variables of the program and the mask of its log. Their file is removed before it starts."""
    path = f"{directory}/secrets.json"
    try:
        with open(path, encoding="utf-8") as file:  # noqa: PTH123
            secrets = json.load(file)
    except FileNotFoundError:
        return {}, Mask()
    os.unlink(path)  # noqa: PTH108
    return secrets["environment"], Mask(secrets["values"])


def _supervise(
    run: str,
    directory: str,
    rank: int,
    tasks: list[str],
    secrets: dict[str, str],
    mask: Mask,
    spools: dict[str, Spool],
    temporary: str,
) -> None:
    with open(f"{directory}/launch.json", encoding="utf-8") as file:  # noqa: PTH123
        launch = {**json.load(file), "temporary": temporary}
    launch["environment"] = setup.changed(launch["environment"], run, launch["fixed"])
    container = launch.get("container")
    environment = containers.variables(container["environment"], run) if container else launch["environment"]
    addresses = meet(run, rank, tasks)
    if addresses:
        environment = with_addresses(environment, launch["placeholders"], addresses)
    devices = {name: os.environ[name] for name in _DEVICES if name in os.environ}
    environment |= {"CUDA_VISIBLE_DEVICES": "", **devices, **secrets}
    if container:
        launch["environment"] |= {"TMPDIR": temporary, **devices}
        _contain(launch, container, environment, run, directory, temporary)
    else:
        launch["environment"] = {"TMPDIR": temporary, **environment, **secrets}
    supervisor = RankSupervisor(directory, launch, mask, spools)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    if addresses:
        supervisor.run()
    else:
        supervisor.end_before_start()


def _contain(
    launch: dict[str, object],
    container: dict[str, list[str]],
    variables: dict[str, str],
    run: str,
    directory: str,
    temporary: str,
) -> None:
    """Make the program one of its container, with these variables, and write down how another one is started beside it.
    Its command is empty if it has no program."""
    image = f"{run}/{containers.IMAGES}/{container['image']}"
    config = read(f"{run}/{containers.IMAGES}", f"{container['image']}.json")
    program, node = str(container["program"]), launch["environment"]
    assert isinstance(node, dict)
    binds = [containers.Bind(*bind) for bind in container["binds"]]
    working = containers.working_directory(config)
    start = containers.start(program, container["options"], binds, f"{image}.sif", working, temporary)
    words = containers.words(config, container["entrypoint"], container["arguments"])
    write(directory, containers.CONTAINER, {"command": start, "environment": node})
    launch["command"] = [*start, *container["before"], *words] if words else []
    launch["environment"] = {**node, **containers.passed(variables, program)}


def main(run: str) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    with open(f"{run}/tasks.json", encoding="utf-8") as file:  # noqa: PTH123
        tasks = json.load(file)["tasks"]
    rank = int(os.environ["SLURM_PROCID"])
    directory = f"{run}/{tasks[rank]}"
    try:  # a controller that was killed may start a job again that it had started just before
        os.close(os.open(f"{directory}/{_BEGUN}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        sys.exit(f"{tasks[rank]} has begun before, and a run never starts over")
    errors = os.open(f"{directory}/supervisor.err", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(errors, 2)
    os.close(errors)
    adopt_orphans()
    secrets, mask = _secrets(directory)
    with open(f"{directory}/launch.json", encoding="utf-8") as file:  # noqa: PTH123
        quota = int(json.load(file)["log_quota"])
    spools = {stream: Spool() for stream in STREAMS}
    temporary = temporary_directory.make(temporary_directory.parent())
    child = os.fork()
    if child == 0:
        adopt_orphans()
        _supervise(run, directory, rank, tasks, secrets, mask, spools, temporary)
        return
    for spool in spools.values():
        spool.close_writer()
    try:
        _guard(directory, quota, mask, spools)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _guard(directory: str, quota: int, mask: Mask, spools: dict[str, Spool]) -> None:
    """Wait for the supervisor; kill whatever it leaves, and complete its log. SIGTERM stays blocked: the supervisor has
    it too."""
    os.wait()
    while descendants(os.getpid()):
        for pid in descendants(os.getpid()):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(_PAUSE_S)
    if not os.path.exists(f"{directory}/launch.json"):  # noqa: PTH110 - the run was removed
        return
    if not read(directory, "exit.json"):
        time.sleep(_KILLED_S)  # Slurm may be about to kill this process too: then the end of the job counts
        write(directory, "exit.json", {"time": rfc3339(time.time_ns())})
    if not read(directory, "done.json"):
        lines = finish_log(directory, quota, mask, spools)
        write(directory, "done.json", {"supervisor": "killed", "lines": lines})


if __name__ == "__main__":
    main(sys.argv[1])
