"""Runs of small shell programs in a real engine, at the level of the docker runtime."""

import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from beds.engines import Engine as RealEngine
from beds.waiting import until
from trainyard_agent.engines.docker import spec
from trainyard_agent.engines.docker.client import DockerClient
from trainyard_agent.engines.docker.network.networks import Networks
from trainyard_agent.engines.docker.runtime import DockerRuntime
from trainyard_agent.engines.docker.spec import Owner
from trainyard_agent.runtimes.base import Launch
from trainyard_protocol.states import ReplicaState
from trainyard_protocol.wire.sync import ExitReport, ReplicaReport, RunOrder
from unit.agent.stub_server import run_order

CHIEF, WORKER = "master-replica-0", "worker-replica-0"


@dataclass
class Host:
    """One agent's side of an engine. `connection` may be an engine of the test's own that misbehaves."""

    engine: RealEngine
    state_dir: Path
    owner: Owner = field(default_factory=lambda: Owner(uuid.uuid4().hex))
    connection: DockerClient | None = None
    network: Mapping[str, Any] = field(default_factory=dict)
    """Of its Networks: `policy`, `allowed`, ..."""
    disk_bytes: int = 0

    def __post_init__(self) -> None:
        self.connection = self.connection or DockerClient(self.engine.url)
        self.networks = Networks(self.connection, self.owner, **self.network)
        self.runtime = self._new_runtime(self.connection)

    def _new_runtime(self, connection: DockerClient) -> DockerRuntime:
        return DockerRuntime(self.state_dir, connection, self.owner, networks=self.networks, disk_bytes=self.disk_bytes)

    def order(self, *tasks: str) -> RunOrder:
        return run_order(uuid.uuid4().hex, *tasks)

    def launch(self, script: str, task: str = CHIEF, **given: Any) -> Launch:
        given = {"environment": {}, "cpus": (), "memory_bytes": 0, "image": self.engine.base_image, **given}
        return Launch(task=task, command=("/bin/sh", "-c", script), **given)

    def start(self, script: str, task: str = CHIEF, **given: Any) -> str:
        """A run of one replica; its id."""
        order = self.order(task)
        self.runtime.place(order)
        self.runtime.start(order.run_id, [self.launch(script, task, **given)])
        return order.run_id

    def start_gang(self, scripts: dict[str, str]) -> str:
        order = self.order(*scripts)
        self.runtime.place(order)
        self.runtime.start(order.run_id, [self.launch(script, task) for task, script in scripts.items()])
        return order.run_id

    def report(self, run_id: str, task: str = CHIEF) -> ReplicaReport:
        return next(report for report in self.runtime.observe(run_id) if report.task == task)

    def end(self, run_id: str, task: str = CHIEF) -> ExitReport:
        """Wait for it."""
        self.until(lambda: self.report(run_id, task).exit is not None)
        found = self.report(run_id, task).exit
        assert found is not None
        return found

    def running(self, run_id: str, task: str = CHIEF) -> bool:
        return self.report(run_id, task).state is ReplicaState.RUNNING

    def log(self, run_id: str, task: str = CHIEF) -> list[str]:
        """The whole of it, once it is complete."""
        self.until(lambda: self.runtime.read_log(run_id, task, 1 << 40, 1, 1).complete)
        return self.printed(run_id, task)

    def printed(self, run_id: str, task: str = CHIEF) -> list[str]:
        return [line.text for line in self.runtime.read_log(run_id, task, 0, 1_000_000, 1 << 30).lines]

    def run(self, script: str, **given: Any) -> list[str]:
        """The output of a program that exits with 0."""
        run_id = self.start(script, **given)
        ended = self.end(run_id)
        printed = self.log(run_id)
        assert ended.code == 0, (ended, printed)
        self.runtime.remove(run_id)
        return printed

    def new_agent(self) -> None:
        """The agent died and came back."""
        self.runtime.close()
        assert self.connection is not None
        self.runtime = self._new_runtime(self.connection)
        self.runtime.recover()

    def remaining(self) -> list[str]:
        """Everything in the engine that is this agent's, and every file of a run."""
        files = [str(path) for path in (self.state_dir / "containers").iterdir()]
        return files + self.engine.remaining(f"{spec.AGENT}={self.owner.agent_id}")

    @staticmethod
    def until(holds: Callable[[], object]) -> None:
        until(holds)


@contextmanager
def host_on(engine: RealEngine, state_dir: Path, **network: Any) -> Iterator[Host]:
    """Removes every run at the end, and insists that nothing of this agent is left."""
    host = Host(engine, state_dir, network=network)
    try:
        yield host
    finally:
        for handle in host.runtime.recover():
            host.runtime.remove(handle.run_id)
        left = host.remaining()
        host.runtime.close()
        assert host.connection is not None
        host.connection.close()
        assert left == []
