"""A server in this process, without sockets and loops, with some agents and jobs; its work can be counted."""

import asyncio
import json
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from sqlalchemy import event, insert
from starlette.types import ASGIApp

from benchmarks import filled
from trainyard_protocol.job.machines import GIGABYTE
from trainyard_protocol.states import JobState
from trainyard_protocol.wire.agents import AGENT_KEY, AgentInfo
from trainyard_protocol.wire.sync import RunReport, SyncRequest, SyncResponse
from trainyard_server.app import create_app
from trainyard_server.config.settings import Settings
from trainyard_server.domain.access.agent_keys import AgentKey
from trainyard_server.domain.access.permissions import Role, Token
from trainyard_server.storage.db.base.models import AgentRow, JobRow
from trainyard_server.use_cases import UseCases

PROJECT = "scale"
INPUT = {"scaleTier": "CUSTOM", "masterType": "n1-standard-4", "pythonModule": "trainer.task"}
CPUS = 32

_ADMIN, _AGENT = "the-token-of-an-administrator", "the-token-of-all-agents"
_KEY = AgentKey("0" * 64)
_STEPS = 10  # instructions of SQLite between two calls of a progress handler


@dataclass(slots=True)
class Work:
    """Cost of calls. `steps`: instructions of SQLite's virtual machine, which grow with the rows that a
    statement looks at. `writes`: write transactions, of which one at a time runs; `held_ms`: the CPU time in them."""

    cpu_ms: float = 0.0
    statements: int = 0
    steps: int = 0
    writes: int = 0
    held_ms: float = 0.0


@dataclass(slots=True)
class _Counters:
    statements: int = 0
    steps: int = 0
    writes: int = 0
    held_s: float = 0.0
    began: float = field(default=0.0)


def agent_info(number: int) -> AgentInfo:
    """The agent of one of many equal machines."""
    info = filled.agent_info(f"a{number}", CPUS, 4 * CPUS * GIGABYTE)
    return info.model_copy(update={"runtime": "process", "host": f"host-{number}"})


class ServerBed:
    def __init__(self, app: ASGIApp, use_cases: UseCases) -> None:
        self.use_cases = use_cases
        self._app = app
        self._runner = asyncio.Runner()
        self._counters: _Counters | None = None
        self._listen()

    def close(self) -> None:
        self._runner.close()
        self.use_cases.backend.store.close()

    def call(self, method: str, path: str, body: Any = None, *, agent: bool = False, query: str = "") -> Any:
        """One request through the whole application; returns its JSON."""
        content = body if isinstance(body, str) else "" if body is None else json.dumps(body)
        return self._runner.run(self._call(method, path, content.encode(), agent, query))

    def sync(
        self, number: int, runs: tuple[RunReport, ...] = (), seen: str = "", info: AgentInfo | None = None
    ) -> SyncResponse:
        """One sync of an agent, whose answer is not held."""
        request = SyncRequest(agent=info or agent_info(number), runs=runs, seen=seen)
        answer = self.call("POST", "/agent/v1/sync", request.model_dump_json(), agent=True)
        return SyncResponse.model_validate(answer)

    def tick(self) -> None:
        self.use_cases.controller.tick()

    @contextmanager
    def measured(self) -> Iterator[Work]:
        """The CPU time of the block, in all threads."""
        work = Work()
        began = time.process_time()
        yield work
        work.cpu_ms = (time.process_time() - began) * 1000

    @contextmanager
    def counted(self) -> Iterator[Work]:
        """The database's work in the block. To count takes time of its own."""
        work, counters = Work(), _Counters()
        self._counters = counters
        try:
            yield work
        finally:
            self._counters = None
        work.statements, work.steps, work.writes = counters.statements, counters.steps, counters.writes
        work.held_ms = counters.held_s * 1000

    async def _call(self, method: str, path: str, content: bytes, agent: bool, query: str) -> Any:
        token = _AGENT if agent else _ADMIN
        headers = {
            "host": "127.0.0.1",
            "authorization": f"Bearer {token}",
            "content-type": "application/json",
        }
        headers["content-length"] = str(len(content))
        if agent:
            headers[AGENT_KEY.lower()] = _KEY.secret
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": query.encode(),
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 80),
            "state": {},
        }
        status, parts = 0, []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": content, "more_body": False}

        async def send(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            else:
                parts.append(message.get("body", b""))

        await self._app(scope, receive, send)
        if status >= 400:
            raise RuntimeError(f"{method} {path} was answered with {status}: {b''.join(parts)[:500]!r}")
        return json.loads(b"".join(parts))

    def _listen(self) -> None:
        engine = self.use_cases.backend.store._engine

        def step() -> int:
            if self._counters is not None:
                self._counters.steps += _STEPS
            return 0

        def connected(connection: Any, _record: object) -> None:
            connection.set_progress_handler(step, _STEPS)

        def executed(_connection: object, _cursor: object, statement: str, *_: object) -> None:
            if (counters := self._counters) is None:
                return
            if statement == "BEGIN IMMEDIATE":
                counters.writes += 1
                counters.began = time.process_time()
            elif statement != "BEGIN":
                counters.statements += 1

        def committed(_connection: object) -> None:
            if (counters := self._counters) is not None and counters.began:
                counters.held_s += time.process_time() - counters.began
                counters.began = 0.0

        event.listen(engine, "connect", connected)
        event.listen(engine, "before_cursor_execute", executed)
        event.listen(engine, "commit", committed)
        engine.dispose()


@contextmanager
def bed(agents: int = 0, queued: int = 0, ended: int = 0) -> Iterator[ServerBed]:
    """A server with agents that have just called, jobs that no agent can start, and jobs of the past."""
    with tempfile.TemporaryDirectory() as name:
        data = Path(name) / "data"
        if ended:
            shutil.copytree(Path(_past(ended).name) / "data", data)
        settings = Settings(
            data_dir=data,
            tokens=(Token(Role.ADMIN, "admin", _ADMIN), Token(Role.AGENT, "agent", _AGENT)),
            run_loops=False,
            durable=False,
            requests_per_s=0,
            queued_jobs=0,
        )
        app = create_app(settings)
        made = ServerBed(app, app.state.use_cases)
        try:
            _fill(made, agents, queued, ended)
            yield made
        finally:
            made.close()


@cache
def _past(ended: int) -> "tempfile.TemporaryDirectory[str]":
    """A data directory with so many jobs, filled once."""
    directory = tempfile.TemporaryDirectory()
    filled.fill(Path(directory.name) / "data", ended)
    return directory


def _fill(made: ServerBed, agents: int, queued: int, ended: int) -> None:
    now = datetime.now(UTC)
    with made.use_cases.backend.store.write() as writer:
        rows = [_agent_row(number, now) for number in range(agents)]
        if rows:
            writer.session.execute(insert(AgentRow), rows)
            writer.changes.agents.update(row["agent_id"] for row in rows)
        jobs = [_queued_row(ended + number, now) for number in range(queued)]
        if jobs:
            writer.session.execute(insert(JobRow), jobs)
            writer.changes.jobs.update(row["key"] for row in jobs)


def _agent_row(number: int, now: datetime) -> dict[str, Any]:
    return {
        "agent_id": f"a{number}",
        "info": agent_info(number).model_dump(mode="json"),
        "key_sha256": _KEY.digest,
        "first_seen": now,
        "last_seen": now,
        "heartbeats": 1,
        "sent_version": "",
        "orphaned_runs": [],
    }


def _queued_row(number: int, now: datetime) -> dict[str, Any]:
    vcpus = (4, 8, 16)[number % 3]
    replica = {
        "task": "master-replica-0",
        "machine_type": f"n1-standard-{vcpus}",
        "vcpus": vcpus,
        "memory_bytes": vcpus * 3 * GIGABYTE,
        "accelerator_type": "NVIDIA_TESLA_T4",  # no agent has accelerators: the queue stays
        "accelerator_count": 1,
    }
    return {
        "key": number + 1,
        "project": f"p{number % 20}",
        "job_id": f"queued_{number}",
        "owner": "admin",
        "state": JobState.QUEUED,
        "training_input": INPUT,
        "gang": [replica],
        "priority": 0,
        "labels": {},
        "created_at": now,
        "queued_at": now,
    }
