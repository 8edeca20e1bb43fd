"""Servers with many jobs in their databases."""

import random
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
from sqlalchemy import insert, text

from trainyard_protocol.job.machines import GIGABYTE
from trainyard_protocol.job.resources import Capacity
from trainyard_protocol.states import JobState, Outcome, Reason, ReplicaState, RunState
from trainyard_protocol.wire.agents import AgentInfo
from trainyard_server.storage.db.base.models import (
    AgentRow,
    EventRow,
    JobLabelRow,
    JobRow,
    ReplicaRow,
    RunRow,
)
from trainyard_server.storage.db.repository import Store, Writer

TOKEN = "a-token-of-this-benchmark"  # noqa: S105 - of two servers on loopback that live for minutes
AGENT_TOKEN = "an-agent-of-this-benchmark"  # noqa: S105
TRAINING_INPUT = {"scaleTier": "CUSTOM", "masterType": "n1-standard-4", "pythonModule": "trainer.task"}
_START_S = 60.0
QUEUED = 20
"""Number of queued jobs, in both."""
PINNED = range(7, 10)
"""Jobs with a label that no other has, in both."""


@dataclass(frozen=True, slots=True)
class FilledServer:
    """A server process, and a client that may do everything."""

    client: httpx.Client
    pid: int


@contextmanager
def started(
    data_dir: Path,
    directory: Path,
    look_every_s: float = 0.1,
    agents: bool = False,
    options: Sequence[str] = (),
) -> Iterator[FilledServer]:
    """Run a server process on a data directory. With `agents` the token in agent-token lets agents join."""
    token_file, agent_file = directory / "token", directory / "agent-token"
    for file, token in ((token_file, TOKEN), (agent_file, AGENT_TOKEN)):
        file.touch(0o600)
        file.write_text(token)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "trainyard_server", "--data-dir", str(data_dir), "--port", str(port)]
    command += ["--token-file", f"admin={token_file}", "--log-level", "error"]
    if agents:
        command += ["--token-file", f"agent={agent_file}"]
    process = subprocess.Popen([*command, *options])
    headers = {"Authorization": f"Bearer {TOKEN}", "Accept": "text/html"}
    client = httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=60)
    try:
        deadline = time.monotonic() + _START_S
        while time.monotonic() < deadline:
            try:
                client.get("/healthz")
                break
            except httpx.TransportError:
                time.sleep(look_every_s)
        yield FilledServer(client, process.pid)
    finally:
        client.close()
        process.terminate()
        process.wait()


@contextmanager
def serving(data_dir: Path, directory: Path) -> Iterator[httpx.Client]:
    with started(data_dir, directory) as server:
        yield server.client


def agent_info(agent_id: str, cpus: int, memory_bytes: int) -> AgentInfo:
    """An agent that nobody runs."""
    return AgentInfo(
        agent_id=agent_id,
        name=agent_id,
        version="0",
        runtime="fake",
        capacity_mode="strict",
        runs_images=False,
        capacity=Capacity(cpus=tuple(range(cpus)), memory_bytes=memory_bytes),
    )


def add_agents(writer: Writer, infos: Iterable[AgentInfo], key_sha256: str = "") -> None:
    """Agents that have just called."""
    now = datetime.now(UTC)
    called = {"first_seen": now, "last_seen": now, "heartbeats": 1, "sent_version": "", "orphaned_runs": []}
    rows = [
        {"agent_id": info.agent_id, "info": info.model_dump(mode="json"), "key_sha256": key_sha256, **called}
        for info in infos
    ]
    if rows:
        writer.session.execute(insert(AgentRow), rows)
        writer.changes.agents.update(info.agent_id for info in infos)


def add_queue(writer: Writer, count: int, first: int = 0) -> None:
    """Queued jobs that ask for accelerators: where no agent has any, the queue stays."""
    now = datetime.now(UTC)
    rows = [_queued_row(first + number, now) for number in range(count)]
    if not rows:
        return
    writer.session.execute(insert(JobRow), rows)
    writer.changes.jobs.update(range(first + 1, first + count + 1))
    if writer.session.get_bind().dialect.name == "postgresql":  # whose own keys go on behind these
        writer.session.execute(text(f"SELECT setval(pg_get_serial_sequence('jobs', 'key'), {first + count})"))


def _queued_row(number: int, now: datetime) -> dict[str, Any]:
    vcpus = (4, 8, 16)[number % 3]
    resources = {"vcpus": vcpus, "memory_bytes": vcpus * 3 * GIGABYTE}
    accelerator = {"accelerator_type": "NVIDIA_TESLA_T4", "accelerator_count": 1}
    master = {"task": "master-replica-0", "machine_type": f"n1-standard-{vcpus}"}
    return {
        "key": number + 1,
        "project": f"p{number % 20}",
        "job_id": f"queued_{number}",
        "owner": "admin",
        "state": JobState.QUEUED,
        "training_input": TRAINING_INPUT,
        "priority": 0,
        "labels": {},
        "gang": [{**master, **resources, **accelerator}],
        "created_at": now,
        "queued_at": now,
    }


def fill(data_dir: Path, count: int, queued: int = QUEUED, database: str = "") -> None:
    """Create `count` jobs with runs, replicas, labels and events: most succeeded, some failed, the last ones queued.
    `database`: the address of a PostgreSQL, else they are in the directory."""
    data_dir.mkdir()
    chance = random.Random(7)  # noqa: S311 - the same jobs each time
    now = datetime.now(UTC)
    store = Store(database, durable=False) if database else Store.at(data_dir, durable=False)
    with store.write() as writer:
        writer.save_agent(agent_info("a", 1, 2**30), "", (), now)
        rows: dict[type, list[dict[str, Any]]] = {
            kind: [] for kind in (JobRow, JobLabelRow, RunRow, ReplicaRow, EventRow)
        }
        for number in range(count):
            for kind, some in _job(chance, number, count - queued, now).items():
                rows[kind] += some
            if number % 5000 == 4999 or number == count - 1:
                for kind, some in rows.items():
                    if some:
                        writer.session.execute(insert(kind), some)
                    some.clear()
        if database:  # as PostgreSQL does by itself within a minute
            writer.session.execute(text("ANALYZE"))
    store.close()


def _job(
    chance: random.Random, number: int, ended_count: int, now: datetime
) -> dict[type, list[dict[str, Any]]]:
    key, queued = number + 1, number >= ended_count
    created = now - timedelta(minutes=ended_count + QUEUED - number)
    labels = {"team": f"t{number % 20}", "stage": chance.choice(("try", "final"))}
    if number in PINNED:
        labels["pinned"] = "yes"
    replica = {"task": "master-replica-0", "machine_type": "n1-standard-4", "vcpus": 4}
    replica |= {"memory_bytes": 15 * 2**30, "accelerator_type": "", "accelerator_count": 0}
    job = {
        "key": key,
        "project": f"p{number % 5}",
        "job_id": f"job_{number:07}",
        "owner": f"o{number % 12}",
        "state": JobState.QUEUED,
        "training_input": TRAINING_INPUT,
        "gang": [replica],
        "priority": 0,
        "labels": labels,
        "revision": 0,
        "created_at": created,
        "queued_at": created,
        "started_at": None,
        "ended_at": None,
        "error_message": "",
        "verdict": None,
    }
    rows: dict[type, list[dict[str, Any]]] = {
        JobRow: [job],
        JobLabelRow: [{"job_key": key, "name": name, "value": value} for name, value in labels.items()],
        EventRow: [
            _event(key, 1, created, "created", "Validating job requirements..."),
            _event(key, 2, created, "queued", f"Job job_{number:07} is queued."),
        ],
    }
    if not queued:
        _end(rows, failed=chance.random() < 0.1)
    return rows


def _end(rows: dict[type, list[dict[str, Any]]], failed: bool) -> None:
    """Let the job have one run, of one replica, that has ended."""
    (job,) = rows[JobRow]
    run_id = f"{job['key'] - 1:032x}"
    started, ended = (job["created_at"] + timedelta(minutes=minutes) for minutes in (1, 40))
    message = "The replica master 0 exited with a non-zero status of 1."
    reason = Reason.PROGRAM_ERROR if failed else Reason.COMPLETED
    outcome = Outcome.FAILED if failed else Outcome.SUCCEEDED
    verdict = {"outcome": outcome, "reason": reason, "message": message, "exit_code": int(failed)}
    job |= {"state": JobState.FAILED if failed else JobState.SUCCEEDED, "verdict": verdict}
    job |= {"started_at": started, "ended_at": ended, "error_message": message if failed else ""}
    points = [[step, 2.3 / (1 + step / 500)] for step in range(0, 4000, 100)]
    curve = {"name": "loss", "step": 4000, "value": 0.25, "points": points}
    run = {"run_id": run_id, "job_key": job["key"], "number": 1, "agent_id": "a", "state": RunState.ENDED}
    times = {"created_at": job["created_at"], "ended_at": ended}
    rows[RunRow] = [{**run, **times, "acknowledged": True, "verdict": verdict}]
    rows[ReplicaRow] = [
        {
            "run_id": run_id,
            "task": "master-replica-0",
            "position": 0,
            "state": ReplicaState.EXITED,
            "machine_type": "n1-standard-4",
            "cpus": [0],
            "gpus": [],
            "memory_bytes": 2**30,
            "started_at": started,
            "finished_at": ended,
            "exit_code": int(failed),
            "reason": reason,
            "log_complete": True,
            "step": 4000,
            "steps": 4000,
            "metrics": {"main": "loss", "epoch": 5, "epochs": 5, "metrics": [curve]},
        }
    ]
    rows[EventRow].append(_event(job["key"], 3, ended, "job", message, "RUNNING", job["state"].value))


def _event(
    key: int, number: int, at: datetime, kind: str, message: str, before: str = "", after: str = ""
) -> dict[str, Any]:
    fields = {"kind": kind, "message": message, "run": None, "task": "", "before": before, "after": after}
    return {"job_key": key, "number": number, "time": at, **fields}
