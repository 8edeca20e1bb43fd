"""A server in this process, without sockets and loops, with some agents and jobs; its work can be counted."""

import asyncio
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from fastapi import FastAPI
from sqlalchemy import event

from benchmarks import filled
from trainyard_protocol.job.resources import GIGABYTE
from trainyard_protocol.wire.agents import AGENT_KEY, AgentInfo
from trainyard_protocol.wire.sync import RunReport, SyncRequest, SyncResponse
from trainyard_server.app import create_app
from trainyard_server.config.settings import Settings
from trainyard_server.domain.access.agent_keys import AgentKey
from trainyard_server.domain.access.permissions import Role, Token
from trainyard_server.use_cases import UseCases

PROJECT = "scale"
CPUS = 32

_ADMIN, _AGENT = "the-token-of-an-administrator", "the-token-of-all-agents"
_KEY = AgentKey("0" * 64)


@dataclass(slots=True)
class Work:
    """The database's work for some calls. `writes`: write transactions, of which one at a time runs; `held_s`: the CPU
    time in them."""

    writes: int = 0
    held_s: float = 0.0
    began: float = 0.0


def agent_info(number: int, cpus: int = CPUS) -> AgentInfo:
    """The agent of one of many equal machines."""
    info = filled.agent_info(f"a{number}", cpus, 4 * cpus * GIGABYTE)
    return info.model_copy(update={"runtime": "process", "host": f"host-{number}"})


class ServerBed:
    def __init__(self, app: FastAPI, cpus: int = CPUS) -> None:
        self._cpus = cpus
        self.use_cases: UseCases = app.state.use_cases
        transport = httpx.ASGITransport(app)
        self._client = httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1")
        self._runner = asyncio.Runner()
        self._work = Work()
        self._listen()

    def close(self) -> None:
        self._runner.close()
        self.use_cases.backend.store.close()

    def post(self, path: str, body: str, *, agent: bool = False) -> Any:
        """One request through the whole application; returns its JSON."""
        headers = {"Authorization": f"Bearer {_AGENT if agent else _ADMIN}", AGENT_KEY: _KEY.secret}
        headers["Content-Type"] = "application/json"
        answer = self._runner.run(self._client.post(path, content=body, headers=headers))
        if answer.is_error:
            raise RuntimeError(f"{path} was answered with {answer.status_code}: {answer.text[:500]}")
        return answer.json()

    def sync(
        self, number: int, runs: tuple[RunReport, ...] = (), seen: str = "", info: AgentInfo | None = None
    ) -> SyncResponse:
        """One sync of an agent, whose answer is not held."""
        request = SyncRequest(agent=info or agent_info(number, self._cpus), runs=runs, seen=seen)
        answer = self.post("/agent/v1/sync", request.model_dump_json(), agent=True)
        return SyncResponse.model_validate(answer)

    def age_contacts(self) -> None:
        """Let the last contacts of all agents be as old as they are at calls of idle ones, which write them anew."""
        self.use_cases.agent_sync._unchanged._written_at.clear()

    def tick(self) -> None:
        """One round of the scheduler, however long its last plan took."""
        self.use_cases.controller._plan_after = dict.fromkeys((False, True), 0.0)
        self.use_cases.controller.tick()

    def settle(self) -> None:
        """Tick until reasons to wait and service lines are written."""
        with self.use_cases.backend.store.read() as reader:
            queued = len(reader.queued())
        for _ in range(4 + queued // 200):
            self.tick()

    def counted(self, work: Callable[[], object]) -> Work:
        """The database's work for this. It is always counted, so that it takes its time in each measurement."""
        self._work = Work()
        work()
        return self._work

    def _listen(self) -> None:
        engine = self.use_cases.backend.store._engine

        def executed(_connection: object, _cursor: object, statement: str, *_: object) -> None:
            if statement == "BEGIN IMMEDIATE":
                self._work.writes += 1
                self._work.began = time.process_time()

        def committed(_connection: object) -> None:
            if self._work.began:
                self._work.held_s += time.process_time() - self._work.began
                self._work.began = 0.0

        event.listen(engine, "before_cursor_execute", executed)
        event.listen(engine, "commit", committed)


@contextmanager
def bed(
    agents: int = 0, queued: int = 0, ended: int = 0, settled: bool = True, cpus: int = CPUS
) -> Iterator[ServerBed]:
    """A server with agents that have just called, jobs that no agent can start, and jobs of the past."""
    with tempfile.TemporaryDirectory() as name:
        data = Path(name) / "data"
        if ended:
            filled.fill(data, ended, queued=0)
        tokens = (Token(Role.ADMIN, "admin", _ADMIN), Token(Role.AGENT, "agent", _AGENT))
        app = create_app(
            Settings(data_dir=data, tokens=tokens, run_loops=False, durable=False, requests_per_s=0, queued_jobs=0)
        )
        server = ServerBed(app, cpus)
        try:
            with filled.filling(server.use_cases.backend.store) as writer:
                filled.add_agents(writer, [agent_info(number, cpus) for number in range(agents)], _KEY.digest)
                filled.add_queue(writer, queued, first=ended)
            if settled:
                server.settle()
            yield server
        finally:
            server.close()
