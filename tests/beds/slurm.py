"""A real Slurm for the tests: one controller and three nodes on this machine, out of Debian's packages.

Nothing is installed: the packages are unpacked once, into the cache, and everything else lies in a directory of its
own. The nodes are slurmd processes of this machine, which share its file system, as nodes of a cluster share theirs.
"""

import hashlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from beds.installed.caches import made_once
from beds.kubernetes.build import Apt, NoKubernetes
from beds.waiting import until_up
from support.addresses import free_ports

NODES = ("n1", "n2", "n3")
CPUS, MEMORY_MB = 4, 4000
NODE_TIMEOUT_S = 6

_RELEASE = "bookworm"
_PACKAGES = (
    *("munge", "libmunge2", "slurmctld", "slurmd", "slurm-client", "slurm-wlm-basic-plugins"),
    *("libhwloc15", "liblua5.1-0", "libnuma1"),
)
_CONTROLLER = "slurmctld"
_COMMANDS = ("sbatch", "scancel", "scontrol", "sinfo", "squeue", "srun")
_LIBRARIES = f"usr/lib/{os.uname().machine}-linux-gnu"
_PATIENCE_S = 60.0

_CONFIG = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={root}/munge.socket
CredType=cred/munge
PluginDir={plugins}
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool.%n
SlurmctldPidFile={root}/slurmctld.pid
SlurmdPidFile={root}/slurmd.%n.pid
SlurmctldLogFile={root}/slurmctld.log
SlurmdLogFile={root}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=1,batch_sched_delay=0,bf_interval=1
PreemptType=preempt/partition_prio
PreemptMode=CANCEL
ReturnToService=2
SlurmdTimeout={node_timeout}
KillWait=10
"""


class NoSlurm(Exception):
    """The message says what is missing."""


class SlurmBed:
    """A controller and its nodes. `commands` is the directory of Slurm's commands, for the PATH of who uses it."""

    def __init__(self, programs: Path, root: Path) -> None:
        self._programs, self._root = programs, root
        self._daemons: dict[str, psutil.Popen] = {}
        self.commands = root / "bin"
        self._environment = {
            **os.environ,
            "LD_LIBRARY_PATH": f"{programs}/{_LIBRARIES}:{programs}/{_LIBRARIES}/slurm-wlm",
            "SLURM_CONF": str(root / "slurm.conf"),
        }

    def start(self) -> None:
        """Raises NoSlurm if the nodes are not there in time."""
        self._configure()
        key = self._root / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        sockets = ("--socket", f"{self._root}/munge.socket", "--key-file", str(key))
        files = [f"--{name}-file={self._root}/munge.{name}" for name in ("pid", "log", "seed")]
        self._spawn("munged", "sbin/munged", "--foreground", "--force", *sockets, *files)
        self._until(lambda: (self._root / "munge.socket").exists())
        self.start_controller()
        for node in NODES:
            self.start_node(node)
        self.until_idle()

    def start_controller(self) -> None:
        self._spawn(_CONTROLLER, "sbin/slurmctld-wlm", "-D")

    def start_node(self, node: str) -> None:
        stepd = self._programs / "usr/sbin/slurmstepd-wlm"
        self._spawn(node, "sbin/slurmd-wlm", "-D", "-N", node, "-d", str(stepd))

    def kill_node(self, node: str) -> None:
        """SIGKILL of its slurmd: what runs on it goes on."""
        self._kill(node)

    def kill_controller(self) -> None:
        """SIGKILL, once it has saved the jobs that it has: it does so a few seconds after a change, such as another
        job."""
        saved, now = self._root / "state/job_state", time.time()
        self.run("sbatch", "--hold", "--job-name=changes", "--wrap=true")
        self.run("scancel", "--name=changes")
        self._until(lambda: _changed_at(saved) > now)
        self._kill(_CONTROLLER)

    def _kill(self, name: str) -> None:
        daemon = self._daemons.pop(name)
        daemon.kill()
        daemon.wait(_PATIENCE_S)

    def until_idle(self) -> None:
        self._until(lambda: self.run("sinfo", "-h", "-N", "-p", "main", "-o", "%t").split() == ["idle"] * len(NODES))

    def until_up(self) -> None:
        """Wait for a controller that knows its nodes again."""
        self._until(lambda: set(self.run("sinfo", "-h", "-N", "-o", "%t").split()) <= {"idle", "mix", "alloc", "comp"})

    def run(self, command: str, *arguments: str) -> str:
        done = subprocess.run([str(self.commands / command), *arguments], capture_output=True, text=True, check=False)
        return done.stdout if done.returncode == 0 else f"{done.stdout}{done.stderr}"

    def stored_environments(self) -> str:
        """All that the controller keeps of the variables and scripts of jobs."""
        kept = (path for path in (self._root / "state").rglob("*") if path.is_file())
        return "".join(path.read_text(errors="replace") for path in kept)

    def remove(self) -> None:
        """Nothing of it is left: no process and no file."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            for daemon in self._daemons.values():
                if daemon.is_running():
                    daemon.send_signal(number)
            psutil.wait_procs(list(self._daemons.values()), timeout=5.0)
        for process in psutil.process_iter():  # slurmstepd of nodes that were killed
            try:
                if any(
                    str(self._root) in word for word in (*process.cmdline(), process.environ().get("SLURM_CONF", ""))
                ):
                    process.kill()
            except psutil.Error:
                continue
        shutil.rmtree(self._root, ignore_errors=True)

    def last_words(self) -> str:
        logs = sorted(self._root.glob("*.log"))
        return "\n".join(f"{log.name}:\n{log.read_text(errors='replace')[-3000:]}" for log in logs)

    def _configure(self) -> None:
        ports = free_ports(1 + len(NODES))
        plugins = f"{self._programs}/{_LIBRARIES}/slurm-wlm"
        host = socket.gethostname()
        text = _CONFIG.format(host=host, port=ports[0], root=self._root, plugins=plugins, node_timeout=NODE_TIMEOUT_S)
        for node, port in zip(NODES, ports[1:], strict=True):
            shape = f"CPUS={CPUS} RealMemory={MEMORY_MB} Features=only-{node}"
            text += f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} {shape}\n"
        text += "PartitionName=main Nodes=ALL Default=YES State=UP PriorityTier=1\n"
        text += "PartitionName=urgent Nodes=ALL State=UP PriorityTier=2\n"
        text += "PartitionName=gentle Nodes=ALL State=UP PriorityTier=1 GraceTime=60\n"
        text += "PartitionName=brief Nodes=ALL State=UP PriorityTier=1 MaxTime=1\n"
        (self._root / "slurm.conf").write_text(text)
        (self._root / "state").mkdir()
        self.commands.mkdir()
        for name in _COMMANDS:
            variables = [f"{name}='{self._environment[name]}'" for name in ("LD_LIBRARY_PATH", "SLURM_CONF")]
            wrapper = self.commands / name
            wrapper.write_text(f'#!/bin/sh\n{" ".join(variables)} exec {self._programs}/usr/bin/{name} "$@"\n')
            wrapper.chmod(0o755)

    def _spawn(self, name: str, program: str, *arguments: str) -> None:
        command = ["setpriv", "--pdeathsig", "TERM", str(self._programs / "usr" / program), *arguments]
        with (self._root / f"{name}.out.log").open("ab") as log:
            self._daemons[name] = psutil.Popen(
                command, env=self._environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def _until(self, holds: Callable[[], bool]) -> None:
        try:
            until_up(holds, self._ended, NoSlurm, "Slurm is up")
        except NoSlurm as error:
            raise NoSlurm(f"{error}\n{self.last_words()}") from error

    def _ended(self) -> str:
        return " ".join(f"{name} ended" for name, daemon in self._daemons.items() if daemon.poll() is not None)


@contextmanager
def started() -> Iterator[SlurmBed]:
    """To be called in the main thread: the daemons end with it. Raises NoSlurm."""
    if os.geteuid() != 0:
        raise NoSlurm("a Slurm of the tests' own takes root")
    root = Path(tempfile.mkdtemp(prefix="ty-slurm-", dir="/tmp"))  # short: paths of sockets are limited
    root.chmod(0o755)
    bed = SlurmBed(programs(), root)
    try:
        bed.start()
        yield bed
    finally:
        bed.remove()


def programs() -> Path:
    """The root of the unpacked packages, made once. Raises NoSlurm."""
    key = hashlib.sha256(repr((_RELEASE, _PACKAGES, os.uname().machine)).encode()).hexdigest()[:16]

    def make(scratch: Path) -> Path:
        Apt(scratch / "apt").packages(list(_PACKAGES), scratch / "root")
        return scratch / "root"

    try:
        return made_once("slurm", key, make)
    except (OSError, NoKubernetes) as error:
        raise NoSlurm(f"Slurm's packages cannot be fetched on this machine: {error}") from error


def _changed_at(file: Path) -> float:
    """The time of a file's last change; 0 while it is replaced by a new one."""
    try:
        return file.stat().st_mtime
    except FileNotFoundError:
        return 0.0
