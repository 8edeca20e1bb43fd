"""Test doubles and drivers to run the same small programs in every runtime."""

import json
import math
import os
import shlex
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol

import psutil
import pytest

from beds.engines import Engine as RealEngine
from beds.kubernetes.bed import BASE_IMAGE
from beds.slurm import SlurmBed
from trainyard_agent.engines.docker import spec
from trainyard_agent.engines.docker.client import DockerClient
from trainyard_agent.engines.docker.runtime import DockerRuntime
from trainyard_agent.engines.docker.spec import Owner
from trainyard_agent.engines.fake import Exit, FakeHost, FakeRuntime, Measure, Print, Script
from trainyard_agent.engines.kubernetes.api.client import KubeClient
from trainyard_agent.engines.kubernetes.api.connection import connect
from trainyard_agent.engines.kubernetes.capacity import metrics
from trainyard_agent.engines.kubernetes.engine import IDENTITY, secret_of
from trainyard_agent.engines.kubernetes.pods import objects
from trainyard_agent.engines.kubernetes.pods.status import exit_of
from trainyard_agent.engines.kubernetes.runtime import KubernetesRuntime
from trainyard_agent.engines.kubernetes.settings import KubernetesSettings
from trainyard_agent.engines.process.runtime import ProcessRuntime
from trainyard_agent.engines.slurm import rank
from trainyard_agent.engines.slurm.run_files import Times
from trainyard_agent.engines.slurm.runtime import SlurmRuntime
from trainyard_agent.engines.slurm.settings import SlurmSettings
from trainyard_agent.engines.slurm.spec import SlurmDefaults
from trainyard_agent.host import process_tags
from trainyard_agent.host.clock import ManualClock
from trainyard_agent.host.files import write_json
from trainyard_agent.host.identity import Identity
from trainyard_agent.runtimes.base import (
    HOST,
    METRIC_FILE,
    EngineUnavailable,
    Launch,
    LogSlice,
    Runtime,
    StartFailed,
    Traits,
)
from trainyard_agent.runtimes.runtime_set import Choice, Choices, RuntimeSet
from trainyard_agent.runtimes.use import ReplicaUse
from trainyard_agent.settings import AgentSettings
from trainyard_protocol.job.cluster import TrialOrder
from trainyard_protocol.wire.logs import LogLine
from trainyard_protocol.wire.sync import ExitReport, ReplicaOrder, ReplicaReport, RunOrder

DEADLINE_S = 120.0
"""A kubelet that was cut off waits up to a minute before it asks again."""


@dataclass(frozen=True)
class Program:
    """Prints its lines, then ends with a code or by a signal, or runs until it is stopped. `python` is the source of a
    program that does something else, `shell` a command after what it lines; the fake runtime knows nothing of them.
    `waits` is what an engine says for a while before it starts the program. `measures` is the value of the metric `acc`
    that it reports."""

    lines: tuple[Print, ...] = ()
    code: int | None = None
    dies_of: signal.Signals | None = None
    ignores_sigterm: bool = False
    leaves_orphans: bool = False
    waits: str = ""
    missing: bool = False
    python: str = ""
    shell: str = ""
    measures: float | None = None


FOREVER = Program((Print("up"),))
STUBBORN = Program((Print("up"),), ignores_sigterm=True)
FINE = Program((Print("done"),), code=0)
BUSY = Program((Print("up"),), shell="while :; do :; done")
MANY = Program((Print("up"),), shell="while :; do sh -c 'i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done'; done")
MISSING = Program(missing=True)


class Lab(Protocol):
    @property
    def runtime(self) -> Runtime: ...

    def launch(self, task: str, program: Program) -> Launch:
        """The launch of the program in this runtime."""
        ...

    def reopen(self) -> Runtime:
        """A new runtime object on the same machine, as after an agent's restart."""
        ...

    def pause(self) -> None:
        """Let a little time pass."""
        ...

    def kill_supervisor(self, run_id: str, task: str) -> None:
        """Make the replica disappear without an exit status."""
        ...

    def remaining(self, run_id: str) -> list[str]:
        """All files and processes of the run on the machine."""
        ...

    def left(self) -> AbstractContextManager[tuple[str, AgentSettings]]:
        """The place as an agent has left it: the engine's name, and settings with which it is ended from outside."""
        ...


class Driver:
    """The operations of the tests, on top of a lab."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab

    @property
    def runtime(self) -> Runtime:
        return self.lab.runtime

    def place(self, run_id: str, *tasks: str, log_quota: int = 0) -> None:
        self.runtime.place(order(run_id, *tasks, log_quota=log_quota))

    def start(self, run_id: str, programs: dict[str, Program], log_quota: int = 0) -> None:
        self.place(run_id, *programs, log_quota=log_quota)
        launches = [self.lab.launch(task, p) for task, p in programs.items()]
        self.runtime.start(run_id, [replace(launch, log_quota_bytes=log_quota) for launch in launches])

    def start_and_wait(self, run_id: str, programs: dict[str, Program]) -> None:
        """Start, and wait until every program has printed its lines."""
        self.start(run_id, programs)
        for task, program in programs.items():
            self.until(partial(self._has_printed, run_id, task, len(program.lines)))

    def _has_printed(self, run_id: str, task: str, lines: int) -> bool:
        return len(self.texts(run_id, task)) >= lines

    def reports(self, run_id: str) -> dict[str, ReplicaReport]:
        return {report.task: report for report in self.runtime.observe(run_id)}

    def end(self, run_id: str, task: str) -> ExitReport:
        """The end of a replica, once it has one."""
        self.until(lambda: self.reports(run_id)[task].exit)
        report = self.reports(run_id)[task].exit
        assert report is not None
        return report

    def ends(self, run_id: str) -> dict[str, ExitReport]:
        """The ends of all replicas."""
        return {task: self.end(run_id, task) for task in self.reports(run_id)}

    def wait_for_exits(self, run_id: str) -> dict[str, ReplicaReport]:
        self.until(lambda: all(r.exit for r in self.reports(run_id).values()))
        return self.reports(run_id)

    def wait_for_log(self, run_id: str, task: str) -> list[str]:
        self.until(lambda: self.runtime.read_log(run_id, task, 0, 10_000, 1 << 24).complete)
        return self.texts(run_id, task)

    def whole_log(self, run_id: str, task: str) -> LogSlice:
        """The complete log, of any length."""
        self.until(lambda: self.runtime.read_log(run_id, task, 1 << 40, 1, 1).complete)
        lines: list[LogLine] = []
        while True:
            found = self.runtime.read_log(run_id, task, len(lines), 10_000, 1 << 24)
            lines += found.lines
            if found.complete:
                return LogSlice(tuple(lines), True, found.cut)

    def usage(self, run_id: str, task: str) -> ReplicaUse:
        """The usage of a running replica, as soon as it can be measured."""
        self.until(lambda: self.runtime.observe(run_id) and self.runtime.usage(run_id, task))
        use = self.runtime.usage(run_id, task)
        assert use is not None
        return use

    def texts(self, run_id: str, task: str) -> list[str]:
        return [line.text for line in self.runtime.read_log(run_id, task, 0, 10_000, 1 << 24).lines]

    def until(self, holds: Callable[[], object]) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not holds():
            assert time.monotonic() < deadline, "it did not come about in time"
            self.lab.pause()


def order(run_id: str, *tasks: str, grace_s: float = 5.0, log_quota: int = 0, metric_tag: str = "") -> RunOrder:
    replicas = [ReplicaOrder(task=t, machine_type="local-1", cpus=(), memory_bytes=1 << 30) for t in tasks]
    return RunOrder(
        run_id=run_id,
        number=1,
        target="run",
        project="p",
        job_id="contract",
        training_input={},
        replicas=tuple(replicas),
        grace_s=grace_s,
        log_quota_bytes=log_quota,
        trial=TrialOrder(study="s", number=1, metric_tag=metric_tag, hyperparameters={}) if metric_tag else None,
    )


class ShellLab:
    """The part that labs of runtimes have in common which start programs, as shells."""

    name = ""
    runtime: Runtime

    def __init__(self, state_dir: Path) -> None:
        self.state_dir = state_dir
        self.runtime = self.open()

    def open(self) -> Runtime:
        raise NotImplementedError

    def launch(self, task: str, program: Program) -> Launch:
        command = ("/nowhere/program",) if program.missing else ("/bin/sh", "-c", _shell(program))
        return Launch(task=task, command=command, environment={}, cpus=(), memory_bytes=0)

    def reopen(self) -> Runtime:
        self.close()
        self.runtime = self.open()
        return self.runtime

    def close(self) -> None:
        """Let the runtime go of its engine, as an agent that ends."""
        if isinstance(self.runtime, DockerRuntime | KubernetesRuntime):
            self.runtime.close()

    def pause(self) -> None:
        time.sleep(0.02)

    def supervisor(self, run_id: str, task: str) -> psutil.Process:
        tagged = process_tags.tagged(run_id)
        program = next(pid for pid in process_tags.tagged(run_id, task) if _parent(pid) not in tagged)
        return psutil.Process(_parent(program))

    def kill_supervisor(self, run_id: str, task: str) -> None:
        self.supervisor(run_id, task).kill()

    @contextmanager
    def left(self) -> Iterator[tuple[str, AgentSettings]]:
        yield self.name, AgentSettings(state_dir=self.state_dir)

    def files(self, run_id: str) -> list[str]:
        return [str(path) for path in self.state_dir.rglob(f"*{run_id}*")]

    def remaining(self, run_id: str) -> list[str]:
        return self.files(run_id) + [f"process {pid}" for pid in process_tags.tagged(run_id)]

    def remove(self, run_id: str) -> None:
        self.runtime.remove(run_id)

    def end(self) -> None:
        for handle in self.runtime.recover():
            self.remove(handle.run_id)
        self.close()

    @contextmanager
    def driven(self) -> Iterator["Driver"]:
        try:
            yield Driver(self)
        finally:
            self.end()


class ProcessLab(ShellLab):
    name = "process"

    def open(self) -> Runtime:
        return ProcessRuntime(self.state_dir)


class DockerLab(ShellLab):
    """Runs shells of a base image in `engine`, a real one."""

    name = "docker"

    def __init__(self, state_dir: Path, engine: RealEngine) -> None:
        self._engine = engine
        self._owner = Owner(uuid.uuid4().hex)
        self._connection = DockerClient(engine.url)
        super().__init__(state_dir)

    def open(self) -> Runtime:
        return DockerRuntime(self.state_dir, self._connection, self._owner)

    def launch(self, task: str, program: Program) -> Launch:
        return replace(super().launch(task, program), image=self._engine.base_image)

    def kill_supervisor(self, run_id: str, task: str) -> None:
        """`docker rm -f`"""
        (container,) = self._engine.client().containers.list(
            filters={"label": [f"{spec.RUN}={run_id}", f"{spec.TASK}={task}"]}
        )
        container.remove(force=True, v=True)

    @contextmanager
    def left(self) -> Iterator[tuple[str, AgentSettings]]:
        self.close()
        write_json(self.state_dir / "agent.json", {"agent_id": self._owner.agent_id, "key": "k"}, 0o600)
        try:
            with pytest.MonkeyPatch.context() as patch, super().left() as left:
                patch.setenv("DOCKER_HOST", self._engine.url)
                yield left
        finally:
            self.reopen()

    def remaining(self, run_id: str) -> list[str]:
        alive = self._engine.client().containers.list(filters={"label": f"{spec.RUN}={run_id}"})
        processes = [f"process of {container.name}" for container in alive]
        return self.files(run_id) + processes + self._engine.remaining(f"{spec.RUN}={run_id}")

    def end(self) -> None:
        super().end()
        self._connection.close()


class SlurmLab(ShellLab):
    """Runs shells as jobs of `bed`, a real Slurm on this machine."""

    name = "slurm"

    def __init__(self, shared_dir: Path, bed: SlurmBed) -> None:
        self._bed = bed
        self.partition = "main"
        self.longest_s = math.inf
        self.images = ""
        super().__init__(shared_dir)

    def open(self) -> Runtime:
        times = Times(files=0.02, queue=0.2, rank=0.05, usage=0.1, settle=0.2, refusal=0.5)
        defaults = SlurmDefaults(self.partition)
        return SlurmRuntime(self.state_dir, defaults, longest_s=lambda: self.longest_s, times=times, images=self.images)

    @contextmanager
    def left(self) -> Iterator[tuple[str, AgentSettings]]:
        slurm = SlurmSettings(shared_dir=self.state_dir)
        yield self.name, AgentSettings(state_dir=self.state_dir / "agent", parts=(slurm,))

    def remaining(self, run_id: str) -> list[str]:
        jobs = self._bed.run("squeue", "-h", f"--name=ty-{run_id}", "-o", "job %i %T").splitlines()
        jobs = [job for job in jobs if not job.endswith("COMPLETING")]  # its processes have ended
        return super().remaining(run_id) + jobs

    def start_rank_again(self, run_id: str) -> str:
        """Start the first rank of a run beside itself, as a Slurm does that has forgotten it; its last words."""
        command = [sys.executable, "-I", "-S", rank.__file__, str(self.state_dir / "runs" / run_id)]
        environment = {**os.environ, "SLURM_PROCID": "0"}
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False).stderr

    def remove(self, run_id: str) -> None:
        """Remove a run, and the orphans that a Slurm without cgroups loses."""
        super().remove(run_id)
        process_tags.kill_tagged(run_id)


class KubernetesLab(ShellLab):
    """Runs shells of the bed's base image in a namespace of a cluster."""

    name = "kubernetes"

    def __init__(self, state_dir: Path, kubeconfig: Path) -> None:
        self._kubeconfig = kubeconfig
        self.owner = objects.PodOwner(uuid.uuid4().hex)
        self.client = KubeClient(connect(kubeconfig))
        self.init_image = ""
        super().__init__(state_dir)

    @property
    def labels(self) -> dict[str, str]:
        return {objects.AGENT: self.owner.agent_id}

    def open(self) -> KubernetesRuntime:
        usage = self.client.has_group(metrics.GROUP)
        return KubernetesRuntime(
            self.state_dir, self.client, self.owner, measures_usage=usage, init_image=self.init_image
        )

    def launch(self, task: str, program: Program) -> Launch:
        launch = super().launch(task, program)
        entrypoint, command = launch.command[:1], launch.command[1:]
        return replace(launch, command=command, image=BASE_IMAGE, entrypoint=entrypoint)

    def move(self) -> Runtime:
        """An agent in another place, without the files of this one."""
        self.state_dir = self.state_dir.with_name("elsewhere")
        return self.reopen()

    def kill_supervisor(self, run_id: str, task: str) -> None:
        """`kubectl delete --force`, of a pod that was let go of by hand."""
        name = objects.pod_name(run_id, task)
        self.client.patch("pods", name, {"metadata": {"finalizers": None}})
        self.client.delete("pods", name, 0)

    @contextmanager
    def left(self) -> Iterator[tuple[str, AgentSettings]]:
        self.close()
        secret = secret_of(Identity(self.owner.agent_id, "key"))
        if self.client.get("secrets", IDENTITY) is None:
            self.client.create("secrets", secret)
        self.state_dir.mkdir(exist_ok=True)
        kubernetes = KubernetesSettings(kubeconfig=self._kubeconfig)
        try:
            yield self.name, AgentSettings(state_dir=self.state_dir, parts=(kubernetes,))
        finally:
            self.client.delete("secrets", IDENTITY)

    def has_lost_code(self, run_id: str, task: str) -> bool:
        """Whether the kubelet says that it does not know how the program ended. Before Kubernetes 1.22 it removes the
        container of a deleted pod once that has ended: where it is slow to stop the rest of the pod, unread."""
        pod = self.client.get("pods", objects.pod_name(run_id, task))
        assert pod is not None
        (container,) = pod["status"]["containerStatuses"]
        ended = container["state"].get("terminated") or container["lastState"].get("terminated") or {}
        return bool(ended.get("reason") == "ContainerStatusUnknown")

    def remaining(self, run_id: str) -> list[str]:
        selector = self.owner.selector_of(run_id)
        found = {kind: self.client.list(kind, selector)[0] for kind in ("pods", "services", "configmaps")}
        alive = [f"process of {one['metadata']['name']}" for one in found["pods"] if exit_of(one) is None]
        names = [f"{kind} {one['metadata']['name']}" for kind, several in found.items() for one in several]
        return self.files(run_id) + alive + names

    def end(self) -> None:
        self.reopen()  # a test that failed may have closed it
        super().end()
        self.client.close()

    def remove(self, run_id: str) -> None:
        """Remove a run as an agent does: again, while a kubelet that was killed or cut off has not told its end."""
        deadline = time.monotonic() + DEADLINE_S
        while True:
            try:
                return self.runtime.remove(run_id)
            except EngineUnavailable:
                if time.monotonic() > deadline:
                    raise


class FakeLab:
    traits = HOST

    def __init__(self) -> None:
        self._clock = ManualClock()
        self._scripts: dict[tuple[str, ...], Program] = {}
        self._host = FakeHost(self._clock, self._play)
        self.runtime: Runtime = FakeRuntime(self._host, traits=self.traits)

    def launch(self, task: str, program: Program) -> Launch:
        command = ("/bin/sh", "-c", f"{len(self._scripts)}")
        self._scripts[command] = program
        return Launch(task=task, command=command, environment={}, cpus=(), memory_bytes=0)

    def reopen(self) -> Runtime:
        self.runtime = FakeRuntime(self._host, traits=self.traits)
        return self.runtime

    def pause(self) -> None:
        self._clock.advance(0.1)

    def kill_supervisor(self, run_id: str, task: str) -> None:
        self._host.vanish(run_id, task)

    def remaining(self, run_id: str) -> list[str]:
        return [run_id] if run_id in self._host.runs else []

    @contextmanager
    def left(self) -> Iterator[tuple[str, AgentSettings]]:
        yield "fake", AgentSettings(state_dir=Path())

    def preempt(self, run_id: str, task: str) -> None:
        self._host.preempt(run_id, task)

    def drop_log(self, run_id: str, task: str, lines: int) -> None:
        self._host.drop_log(run_id, task, lines)

    def _play(self, launch: Launch) -> Script:
        program = self._scripts[launch.command]
        if program.missing:
            raise StartFailed(launch.task, "There is no such program.")
        code = program.code if program.dies_of is None else 128 + program.dies_of
        steps: list[tuple[float, Print | Measure | Exit]] = [(0.0, line) for line in program.lines]
        if program.measures is not None:
            steps.append((0.0, Measure(1, program.measures)))
        if code is not None:
            steps.append((0.05, Exit(code)))
        return Script(
            tuple(steps),
            starts_after_s=1.0 if program.waits else 0.0,
            waits=program.waits,
            ignores_sigterm=program.ignores_sigterm,
        )


class EngineLab(FakeLab):
    """An engine that spans hosts, with every weakness."""

    traits = Traits(starts_whole=False, coarse_clock=True, splits_streams=False, keeps_logs=False)


class SetLab(FakeLab):
    """Two runtimes as one. The first run is in one of them, the second in the other."""

    def __init__(self) -> None:
        super().__init__()
        self.reopen()

    def reopen(self) -> Runtime:
        def choose(order: RunOrder) -> Choice:
            return Choice("docker" if order.run_id.startswith("1") else "process")

        one, other = FakeRuntime(self._host, "process"), FakeRuntime(self._host, "docker")
        self.runtime = RuntimeSet({"process": one, "docker": other}, Choices(choose))
        return self.runtime


def _shell(program: Program) -> str:
    if program.python:
        return f"exec python3 -c {shlex.quote(program.python)}"
    lines = ["trap '' TERM"] if program.ignores_sigterm else []
    if program.leaves_orphans:  # one in the background, one in a session of its own, one without a name
        lines += [
            "sleep 1000 &",
            "setsid sh -c \"trap '' TERM; sleep 1000 & sleep 1000\" &",
            "setsid sh -c 'env -i setsid sleep 1000 & exit 0'",
        ]
    if program.measures is not None:
        report = json.dumps({"acc": str(program.measures), "global_step": "1"})
        lines.append(f'mkdir -p "${{{METRIC_FILE}%/*}}" && echo {shlex.quote(report)} > "${METRIC_FILE}"')
    for say in program.lines:
        lines.append(f"printf '%s\\n' {shlex.quote(say.text)}" + (" >&2" if say.stream == "stderr" else ""))
    if program.shell:
        lines.append(program.shell)
    if program.dies_of is not None:
        lines.append(f"kill -{program.dies_of.value} $$")
    lines.append(f"exit {program.code}" if program.code is not None else "sleep 1000 & wait; sleep 1000")
    return "\n".join(lines)


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
