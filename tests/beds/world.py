"""Server and agent in one process: a real app over a real database and real log files, the real agent over a
fake machine, and one clock that only the test moves. Nothing here waits."""

import asyncio
import secrets
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
from fastapi import FastAPI

from beds import databases
from beds.agents import agent_of
from beds.open_engines import process_and_docker
from trainyard_agent.agent import Agent
from trainyard_agent.engines.docker.probe import EngineState
from trainyard_agent.engines.fake import FakeHost, FakeRuntime, Programs
from trainyard_agent.host.clock import ManualClock
from trainyard_agent.lease.lease import Lease
from trainyard_agent.lease.majority import Majority, Word
from trainyard_agent.monitoring.disk_watch import DiskWatch
from trainyard_agent.opening import OpenRuntimes, as_one
from trainyard_agent.peers.meeting import Meeting, Unreached
from trainyard_agent.peers.members import PeerMembers
from trainyard_agent.peers.reach import Reach
from trainyard_agent.runtimes.base import Runtime
from trainyard_agent.server_client import ServerClient
from trainyard_agent.staging.base import ReadyAtOnce, Stager
from trainyard_agent.staging.mounts import AgentMounts
from trainyard_protocol.answers.jobs import JobDetail
from trainyard_protocol.answers.log_views import LogEntry
from trainyard_protocol.job.mounts import SiteMounts
from trainyard_protocol.job.resources import Capacity
from trainyard_protocol.wire.agents import AgentInfo, RuntimeName
from trainyard_protocol.wire.peers import Peers
from trainyard_server.app import create_app
from trainyard_server.capabilities.registry import CAPABILITIES
from trainyard_server.capability import Capability
from trainyard_server.config.settings import Settings
from trainyard_server.domain.access.permissions import Role, Token

TOKENS = {Role.ADMIN: "admin-secret", Role.AGENT: "agent-secret"}


class LossyTransport(httpx.ASGITransport):
    """The network between an agent and the server. `lose` makes the next calls reach the server, and their
    answers get lost on the way back; `cut` lets nothing through."""

    def __init__(self, app: FastAPI) -> None:
        super().__init__(app)
        self.lose = 0
        self.cut = False

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if self.cut:
            raise httpx.ConnectError("the network is cut", request=request)
        response = await super().handle_async_request(request)
        if self.lose:
            self.lose -= 1
            raise httpx.ReadError("the answer was lost", request=request)
        return response


class MachineClock:
    """The clock of a machine, which may be `ahead` of the server's."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self.ahead = timedelta(0)
        self.monotonic, self.sleep, self.wait = clock.monotonic, clock.sleep, clock.wait

    def now(self) -> datetime:
        return self._clock.now() + self.ahead


class MeetingInWorld(Meeting):
    """The listeners of a part, without sockets: they are reached unless their machine, or its way to others, is cut."""

    def __init__(self, world: "World", gang: str) -> None:
        super().__init__(gang)
        self._world, self._id, self._mine = world, gang, set[str]()

    async def open(self, addresses: Iterable[str]) -> None:
        self._mine = set(addresses)
        assert not self._mine & self._world.listeners.keys(), "a port is free before it is given again"
        self._world.listeners.update(dict.fromkeys(self._mine, self))
        self._callers = {address: {} for address in self._mine}

    async def close(self) -> None:
        for address in self._mine & self._world.listeners.keys():
            del self._world.listeners[address]

    async def reach(self, mine: Collection[str], peers: Mapping[str, str]) -> None:
        here = next(iter(self._mine)).partition(":")[0]
        unreached = {}
        for task, address in peers.items():
            other = self._world.listeners.get(address)
            if other is None or other._id != self._id or not self._world.has_way(here, address.partition(":")[0]):
                unreached[task] = f"{task} at {address}: no answer"
                continue
            other._callers[address][min(mine)] = len(mine)
            other._called.set()
        if unreached:
            raise Unreached(next(iter(unreached.values())), unreached)


class Machine:
    """One host and the agent on it, which may die and come back. With `engine` it has processes and containers."""

    def __init__(
        self, world: "World", name: str, programs: Programs, cpus: int, mode: str, engine: EngineState | None = None
    ) -> None:
        self.world = world
        self.name = name
        self.clock = MachineClock(world.clock)
        self.host = FakeHost(self.clock, programs, name)
        self.engine = engine
        self.runtime: Runtime = FakeRuntime(self.host)
        self.info = AgentInfo(
            agent_id=f"agent-{name}",
            name=name,
            version="test",
            runtime="fake",
            capacity_mode=mode,
            runs_images=False,
            capacity=Capacity(cpus=tuple(range(cpus)), memory_bytes=cpus * 4 * 10**9),
            replica_environment={"STORAGE_EMULATOR_HOST": "http://127.0.0.1:9"},
            address=name,
            group="default",
            peer_address=f"{name}:1" if world.has_peers else "",
        )
        self.lease = Lease(world.clock)
        self.alone = False
        """It reaches no other machine, whether or not it reaches the server."""
        self.behind_nat = False
        """No other machine reaches it, though it reaches them."""
        self.disks = DiskWatch()
        self.stager: Stager = ReadyAtOnce()
        self.mounts = AgentMounts(SiteMounts())
        self._key = secrets.token_hex(32)
        self.network = LossyTransport(world.app)
        self._client: ServerClient | None = None
        self.agent: Agent | None = None
        self._opened: OpenRuntimes | None = None
        self.boot()

    def boot(self) -> None:
        """A new agent on the same machine: it knows nothing but what it finds there."""
        self._client = ServerClient("http://server", TOKENS[Role.AGENT], self._key, transport=self.network)
        stager = self.stager
        majority = Majority(self.info.agent_id, self.lease, self.clock)
        self.members = PeerMembers(majority, Reach(), self._ask)
        if self.engine is not None:
            self._opened = self._open(self.engine)
            self.runtime, stager = self._opened.runtime, self._opened.stager
        self.agent = agent_of(
            self.runtime,
            self._client,
            stager,
            self.clock,
            self.offered,
            self.lease,
            disks=self.disks,
            meet=lambda gang: MeetingInWorld(self.world, gang),
            members=self.members,
            mounts=self.mounts,
        )

    async def _ask(self, peer: str, address: str, peers: Peers) -> Word | None:
        other = self.world.machines[address.partition(":")[0]]
        if self.alone or other.alone or not self.world.has_way(self.name, other.name) or other.agent is None:
            return None
        return other.members.majority.word if other.members.majority.peers is not None else None

    def offered(self) -> AgentInfo:
        info = self.info.model_copy(
            update={"mounts": self.mounts.offers, "cache": self.mounts.cache, "unreached": self.members.unreached.ids}
        )
        if self._opened is None:
            return info.model_copy(update={"disks": self.disks.disks})
        return self._opened.info(info)

    def _open(self, engine: EngineState) -> OpenRuntimes:
        kinds: tuple[RuntimeName, ...] = ("process", "docker")
        runtimes = {kind: FakeRuntime(self.host, kind) for kind in kinds}
        opened = process_and_docker(runtimes, lambda: self.engine or engine, self.info.replica_environment)
        return as_one(opened, opened)

    async def step(self, rounds: int = 1) -> None:
        assert self.agent is not None
        for _ in range(rounds):
            await self.agent.step()

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()


class World:
    def __init__(
        self,
        directory: Path,
        has_peers: bool = False,
        capabilities: Sequence[Capability] = CAPABILITIES,
        **settings: Any,
    ) -> None:
        """`has_peers`: agents ask each other, and get short leases."""
        self.capabilities = capabilities
        self.has_peers = has_peers
        self.settings = Settings(
            data_dir=directory,
            database=databases.current.url(directory),
            allowed_hosts=("server",),
            tokens=tuple(Token(role, role, secret) for role, secret in TOKENS.items()),
            run_loops=False,
            durable=False,
            **settings,
        )
        self.clock = ManualClock()
        self.app = create_app(self.settings, self.clock.now, self.clock.monotonic, self.capabilities)
        self.machines: dict[str, Machine] = {}
        self.listeners: dict[str, MeetingInWorld] = {}
        """The gangs that wait for their parts, by the addresses of these."""
        self.apart = False
        """The machines do not reach each other."""
        self.closed: set[tuple[str, str]] = set()
        """The ways that are closed, each from one machine to another."""

    def has_way(self, one: str, other: str) -> bool:
        """Whether a machine reaches another one."""
        return not (self.apart or self.machines[other].behind_nat or (one, other) in self.closed)

    def machine(
        self, name: str, programs: Programs, cpus: int = 4, mode: str = "strict", engine: EngineState | None = None
    ) -> Machine:
        self.machines[name] = Machine(self, name, programs, cpus, mode, engine)
        return self.machines[name]

    def restart_server(self) -> None:
        """Restart it like after `kill -9`: nothing is closed in good order, a new process opens the same directory."""
        self.app.state.use_cases.backend.store.close()
        self.app = create_app(self.settings, self.clock.now, self.clock.monotonic, self.capabilities)
        for machine in self.machines.values():
            machine.network.app = self.app

    def tick(self) -> None:
        self.app.state.use_cases.controller.tick()
        self.app.state.use_cases.backend.progress.flush()

    async def settle(self, rounds: int = 4) -> None:
        """Let server and agents exchange everything that is pending."""
        for _ in range(rounds):
            self.tick()
            for machine in self.machines.values():
                await machine.step()
        self.tick()

    async def close(self) -> None:
        for machine in self.machines.values():
            await machine.close()
        self.app.state.use_cases.backend.store.close()

    # What a user does and sees, over HTTP.

    async def call(self, method: str, path: str, body: object = None) -> httpx.Response:
        transport = httpx.ASGITransport(self.app)
        headers = {"Authorization": f"Bearer {TOKENS[Role.ADMIN]}"}
        async with httpx.AsyncClient(transport=transport, base_url="http://server", headers=headers) as client:
            return await client.request(method, path, json=body)

    async def submit(
        self,
        job_id: str,
        workers: int = 0,
        module: str = "prog.task",
        labels: Mapping[str, str] | None = None,
        **fields: object,
    ) -> None:
        training_input: Mapping[str, object] = {
            "scaleTier": "CUSTOM",
            "masterType": "local-1",
            **({"workerType": "local-1", "workerCount": str(workers)} if workers else {}),
            "pythonModule": module,
            **fields,
        }
        body = {"jobId": job_id, "trainingInput": training_input, "labels": dict(labels or {})}
        answer = await self.call("POST", "/v1/projects/p/jobs", body)
        assert answer.status_code == 200, answer.text

    async def begin(self, job_id: str, rounds: int = 4, **given: Any) -> None:
        """Submit a job and let it start where there is room."""
        await self.submit(job_id, **given)
        await self.settle(rounds)

    async def cancel(self, job_id: str) -> None:
        answer = await self.call("POST", f"/v1/projects/p/jobs/{job_id}:cancel")
        assert answer.status_code == 200, answer.text

    async def detail(self, job_id: str) -> JobDetail:
        answer = await self.call("GET", f"/trainyard/v1/projects/p/jobs/{job_id}")
        assert answer.status_code == 200, answer.text
        return JobDetail.model_validate_json(answer.content)

    async def log(self, job_id: str) -> list[LogEntry]:
        """Every line that the server has for the job, in the order of its cursors."""
        answer = await self.call("GET", f"/trainyard/v1/projects/p/jobs/{job_id}/logs?follow=false")
        assert answer.status_code == 200, answer.text
        blocks = answer.text.split("\n\n")
        data = [line[6:] for b in blocks if "event: log" in b for line in b.splitlines() if line[:6] == "data: "]
        return [LogEntry.model_validate_json(one) for one in data]


def run(coroutine: Any) -> Any:
    return asyncio.run(coroutine)
