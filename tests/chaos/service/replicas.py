"""The replicas that are alive, found by their tags, and operations on them."""

import contextlib
import fcntl
import json
import os
import random
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import docker
import psutil
from docker.errors import APIError, NotFound
from docker.models.containers import Container

from chaos.service.cluster import ChaosCluster, Pod

_Filters = dict[str, str | list[str] | bool]
"""As Docker's SDK takes them."""

_PATIENCE_S = 3.0
_BIRTH_S = 20.0
_IDLE_S = 1.5
"""An operation on a program waits so long for the first one that lives, and for the next one."""

Key = tuple[str, str]
"""The first ten characters of a run's id, and a task."""


@dataclass(frozen=True, slots=True)
class Truth:
    """The record of one program's life, by itself."""

    job: str
    name: str
    run: str
    task: str
    pid: int
    born: float
    notes: tuple[dict[str, object], ...]

    @property
    def key(self) -> Key:
        return self.run, self.task

    @property
    def written(self) -> dict[str, int]:
        """Lines of each stream that had surely been written."""
        known = {"stdout": 0, "stderr": 0}
        for note in self.notes:
            if note["what"] == "written":
                known = {stream: int(str(note[stream])) for stream in known}
        return known

    @property
    def code(self) -> int | None:
        """The exit code with which it ended by itself; None if it was ended."""
        return next((int(str(note["code"])) for note in self.notes if note["what"] == "ended"), None)

    @property
    def overlaps(self) -> list[str]:
        return [str(note["other"]) for note in self.notes if note["what"] == "overlap"]


def truths(root: Path, parts: Mapping[str, str] = MappingProxyType({})) -> Iterator[Truth]:
    """The notes of programs. `parts` has the run of each part on a further agent, by the first ten characters of
    their ids: a program knows its part."""
    for path in sorted(root.glob("jobs/*/truth/*.jsonl")):
        text = path.read_text()
        notes = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
        if notes:
            born = notes[0]
            yield Truth(
                job=path.parents[1].name,
                name=path.stem,
                run=parts.get(born["run"], born["run"]),
                task=born["task"],
                pid=born["pid"],
                born=born["t"],
                notes=tuple(notes[1:]),
            )


def processes_of(root: Path) -> list[psutil.Process]:
    """Everything that lives and names the directory, in its words or its environment."""
    found = []
    for process in psutil.process_iter():
        try:
            words = [*process.cmdline(), *process.environ().values()]
        except psutil.Error:
            continue
        if process.pid != os.getpid() and any(str(root) in word for word in words):
            found.append(process)
    return found


class Replicas:
    """`harmed` says what was done to which replica; `held`, of those whose supervisor was killed while an agent had
    their output open, when that was."""

    def __init__(
        self,
        root: Path,
        runtime: str,
        environment: dict[str, str],
        agent_ids: Callable[[], list[str]],
        agent_pids: Callable[[], list[int]],
        cluster: ChaosCluster | None = None,
    ) -> None:
        self._root, self._cluster = root, cluster
        self._agent_ids, self._agent_pids = agent_ids, agent_pids
        self._docker = docker.DockerClient(environment["DOCKER_HOST"]) if runtime == "docker" else None
        self.harmed: dict[Key, set[str]] = {}
        self.held: dict[Key, float] = {}

    def containers(self) -> list[str]:
        """And networks, dead or alive; or the objects in a cluster."""
        if self._cluster is not None:
            return self._cluster.of_runs()
        if self._docker is None:
            return []
        found: list[str] = []
        for agent_id in self._agent_ids():
            mine: _Filters = {"label": f"trainyard.agent={agent_id}"}
            found += [str(c.name) for c in self._docker.containers.list(all=True, filters=mine, ignore_removed=True)]
            found += [str(network.name) for network in self._docker.networks.list(filters=mine)]
        return found

    def remove(self) -> None:
        """Nothing of a history that failed lives on; of one that did not, nothing is there."""
        if self._docker is not None:
            for agent_id in self._agent_ids():
                mine: _Filters = {"label": f"trainyard.agent={agent_id}"}
                for container in self._docker.containers.list(all=True, filters=mine, ignore_removed=True):
                    container.remove(force=True, v=True)
                for network in self._docker.networks.list(filters=mine):
                    network.remove()
            self._docker.close()
        for process in processes_of(self._root):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()

    def do_kill_program(self, which: int) -> None:
        if pod := self._pod(which, "killed"):
            pod.signal(signal.SIGKILL)
        elif self._docker is not None:
            self._with_container(which, "killed", lambda container: container.kill(signal.SIGKILL))
        elif truth := self._one(which):
            self._harm(truth.key, "killed")
            self._signal(truth.pid, signal.SIGKILL)

    def do_pause_program(self, which: int, for_s: float) -> None:
        if self._docker is not None:

            def pause(container: Container) -> None:
                container.pause()
                time.sleep(for_s)
                container.unpause()

            self._with_container(which, "paused", pause)
        elif pod := self._pod(which, "paused"):
            pod.signal(signal.SIGSTOP)
            time.sleep(for_s)
            pod.signal(signal.SIGCONT)
        elif truth := self._one(which):
            self._harm(truth.key, "paused")
            self._signal(truth.pid, signal.SIGSTOP)
            time.sleep(for_s)
            self._signal(truth.pid, signal.SIGCONT)

    def kill_supervisor(self, which: int, *, must_be_held: bool) -> None:
        """Kill the process between a program and the agent: the supervisor, or the container itself. A supervisor is
        killed once an agent has its output open, or after a while; `must_be_held`: nothing keeps an agent from that."""
        if self._docker is not None:
            self._with_container(which, "removed", lambda container: container.remove(force=True, v=True))
            return
        give_up_at = time.monotonic() + _BIRTH_S
        while truth := self._one(which):
            supervisor = self._supervisor_of(truth.pid)
            is_held = supervisor != 0 and self._is_held(supervisor)
            is_over = time.monotonic() > give_up_at
            if supervisor and (is_held or is_over):
                assert is_held or not must_be_held, f"no agent has the output of {truth.name}"
                self._harm(truth.key, "removed")
                if is_held:
                    self.held[truth.key] = time.monotonic()
                with contextlib.suppress(ProcessLookupError):
                    os.kill(supervisor, signal.SIGKILL)
                return
            if is_over:
                return
            time.sleep(0.02)

    def _supervisor_of(self, pid: int) -> int:
        """The parent of a program, if it is a supervisor of ours; 0 otherwise."""
        try:
            parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
            words = Path(f"/proc/{parent}/cmdline").read_bytes().split(b"\0")
        except OSError:
            return 0  # it has just ended
        is_supervisor = any(word.endswith(b"supervisor.py") for word in words)
        return parent if is_supervisor and any(w.startswith(str(self._root).encode()) for w in words) else 0

    def do_delete_pod(self, which: int) -> None:
        """`kubectl delete pod`"""
        if (pod := self._pod(which, "deleted")) and self._cluster is not None:
            self._cluster.delete(pod.path)

    def do_remove_pod(self, which: int) -> None:
        """`kubectl delete pod --force`, of a pod that was let go of by hand."""
        if (pod := self._pod(which, "removed")) and self._cluster is not None:
            self._cluster.patch(pod.path, {"metadata": {"finalizers": None}})
            self._cluster.delete(pod.path, 0)

    def do_preempt_pod(self, which: int) -> None:
        if (pod := self._pod(which, "preempted")) and self._cluster is not None:
            self._cluster.preempt(pod.path)

    def _pod(self, which: int, harm: str) -> Pod | None:
        """One that runs now, or the first that does within a while."""
        if self._cluster is None:
            return None
        give_up_at = time.monotonic() + _PATIENCE_S
        while not (alive := self._cluster.running()):
            if time.monotonic() > give_up_at:
                return None
            time.sleep(0.02)
        pod = random.Random(which).choice(alive)
        self._harm(pod.key, harm)
        return pod

    def _one(self, which: int) -> Truth | None:
        """One that lives now, or the first that does within a while: programs start late on a busy machine."""
        last_seen_at, give_up_at = time.monotonic(), time.monotonic() + _BIRTH_S
        while True:
            known = list(truths(self._root))
            alive = [truth for truth in known if self._lives(truth)]
            if alive:
                return random.Random(which).choice(alive)
            now = time.monotonic()
            if not known:
                last_seen_at = now
            if now > give_up_at or now > last_seen_at + _IDLE_S:
                return None
            time.sleep(0.03)

    def _is_held(self, supervisor: int) -> bool:
        """Whether an agent has the supervisor's files in memory open, and so what it reads of its program. It is looked
        at twice: an agent that is just opening them may let go of them again."""
        spools = _files_in_memory(supervisor)
        if not spools or not self._have_open(spools):
            return False
        time.sleep(0.05)
        return self._have_open(spools)

    def _have_open(self, spools: set[int]) -> bool:
        return spools <= set().union(*map(_files_in_memory, self._agent_pids()))

    def _lives(self, truth: Truth) -> bool:
        try:
            fd = os.open(self._root / "jobs" / truth.job / "locks" / truth.name, os.O_RDWR)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(fd)
        return False

    def _signal(self, pid: int, number: signal.Signals) -> None:
        """Only one that is surely ours: the kernel may have used the number again."""
        try:
            if str(self._root).encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(pid, number)
        except OSError:
            return

    def _with_container(self, which: int, harm: str, work: Callable[[Container], None]) -> None:
        if container := self._container(which):
            self._harm((container.labels["trainyard.run"][:10], container.labels["trainyard.task"]), harm)
            try:
                work(container)
            except (NotFound, APIError):
                return  # it has just ended

    def _container(self, which: int) -> Container | None:
        """One that runs now, or the first that does within a while."""
        assert self._docker is not None
        give_up_at = time.monotonic() + _PATIENCE_S
        while True:
            for agent_id in random.Random(which).sample(found := self._agent_ids(), len(found)):
                labels = [f"trainyard.agent={agent_id}", "trainyard.role=replica"]
                filters: _Filters = {"label": labels, "status": "running"}
                if containers := self._docker.containers.list(filters=filters, ignore_removed=True):
                    container: Container = random.Random(which).choice(containers)
                    return container
            if time.monotonic() > give_up_at:
                return None
            time.sleep(0.05)

    def _harm(self, key: Key, how: str) -> None:
        self.harmed.setdefault(key, set()).add(how)


def _files_in_memory(pid: int) -> set[int]:
    """The inodes of the spools that a process has open; none of one that is gone."""
    found = set()
    with contextlib.suppress(OSError):
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                if str(entry.readlink()).startswith("/memfd:spool"):
                    found.add(entry.stat().st_ino)
    return found
