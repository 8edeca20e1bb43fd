"""Servers with many jobs in their databases."""

import os
import random
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import psutil
from sqlalchemy import insert, text

from benchmarks.tools import answers, wait_for
from trainyard_protocol.job.resources import GIGABYTE, Capacity
from trainyard_protocol.net.loopback import free_port
from trainyard_protocol.states import JobState, Outcome, Reason, ReplicaState, RunState
from trainyard_protocol.wire.agents import AgentInfo
from trainyard_server.storage.db.base.agent_models import AgentRow
from trainyard_server.storage.db.base.models import (
    EventRow,
    JobLabelRow,
    JobMetricRow,
    JobParameterRow,
    JobRow,
    ReplicaRow,
    RunRow,
)
from trainyard_server.storage.db.repository import Writer
from trainyard_server.storage.db.store import Store

TOKEN = "a-token-of-this-benchmark"  # noqa: S105 - of two servers on loopback that live for minutes
TRAINING_INPUT = {"scaleTier": "CUSTOM", "masterType": "n1-standard-4", "pythonModule": "trainer.task"}
Rows = dict[type, list[dict[str, Any]]]
"""Rows of each table."""

_AT_ONCE = 5000
QUEUED = 20
"""Number of queued jobs, in both."""
PINNED = range(7, 10)
"""Jobs with a label that no other has, in both."""


@dataclass(frozen=True, slots=True)
class FilledServer:
    """A server process, and a client that may do everything."""

    client: httpx.Client
    process: psutil.Process
    directory: Path

    def environment(self, project: str) -> dict[str, str]:
        """The variables of commands of the command line."""
        return {
            **os.environ,
            "HOME": str(self.directory),
            "TRAINYARD_SERVER": str(self.client.base_url),
            "TRAINYARD_TOKEN": TOKEN,
            "TRAINYARD_PROJECT": project,
        }


@contextmanager
def started(directory: Path, *options: str) -> Iterator[FilledServer]:
    """Run a server process on the data directory there."""
    token, port = directory / "token", free_port()
    token.touch(0o600)
    token.write_text(TOKEN)
    command = [sys.executable, "-m", "trainyard_server", "--data-dir", str(directory / "data")]
    command += ["--port", str(port), "--token-file", f"admin={token}", "--log-level", "error", *options]
    headers = {"Authorization": f"Bearer {TOKEN}"}
    server = psutil.Popen(command)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=60) as client:
            wait_for(lambda: answers(client, "/healthz"), "The server does not come up.", pause_s=0.01)
            yield FilledServer(client, server, directory)
    finally:
        server.terminate()
        server.wait()


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


@contextmanager
def filling(store: Store) -> Iterator[Writer]:
    """A transaction that adds rows past the server's memory, which is then read anew."""
    with store.write() as writer:
        yield writer
    store._is_unsure = True


def add_agents(writer: Writer, infos: Iterable[AgentInfo], key_sha256: str = "") -> None:
    """Agents that have just called."""
    now = datetime.now(UTC)
    called = {"first_seen": now, "last_seen": now, "heartbeats": 1}
    rows = [
        {"agent_id": info.agent_id, "info": info.model_dump(mode="json"), "key_sha256": key_sha256, **called}
        for info in infos
    ]
    if rows:
        writer.session.execute(insert(AgentRow), rows)
        writer.changes.agents.update(info.agent_id for info in infos)


def add_queue(writer: Writer, count: int, first: int = 0, *, fits: bool = False) -> None:
    """Queued jobs that ask for accelerators: where no agent has any, the queue stays. `fits`: of four vCPU alone, of
    three priorities."""
    now = datetime.now(UTC)
    row_of = _fitting_row if fits else _queued_row
    rows = [row_of(first + number, now) for number in range(count)]
    if not rows:
        return
    writer.session.execute(insert(JobRow), rows)
    writer.changes.jobs.update(range(first + 1, first + count + 1))
    if writer.session.get_bind().dialect.name == "postgresql":  # whose own keys go on behind these
        writer.session.execute(text(f"SELECT setval(pg_get_serial_sequence('jobs', 'key'), {first + count})"))


def _queued_row(number: int, now: datetime) -> dict[str, Any]:
    vcpus = (4, 8, 16)[number % 3]
    accelerator = {"accelerator_type": "NVIDIA_TESLA_T4", "accelerator_count": 1}
    return _job_row(number, 20, f"queued_{number}", now, {**_replica(vcpus), **accelerator})


def _fitting_row(number: int, now: datetime) -> dict[str, Any]:
    return {**_job_row(number, 20, f"queued_{number}", now, _replica(4)), "priority": number % 3}


def _replica(vcpus: int) -> dict[str, Any]:
    machine = {"machine_type": f"n1-standard-{vcpus}", "vcpus": vcpus, "memory_bytes": vcpus * 3 * GIGABYTE}
    return {"task": "master-replica-0", **machine, "accelerator_type": "", "accelerator_count": 0}


def _job_row(number: int, projects: int, job_id: str, created: datetime, replica: dict[str, Any]) -> dict[str, Any]:
    """A job that waits since its creation."""
    return {
        "key": number + 1,
        "project": f"p{number % projects}",
        "job_id": job_id,
        "owner": f"o{number % 12}",
        "state": JobState.QUEUED,
        "training_input": TRAINING_INPUT,
        "gang": [replica],
        "priority": 0,
        "labels": {},
        "created_at": created,
        "queued_at": created,
        "started_at": None,
        "ended_at": None,
        "error_message": "",
        "verdict": None,
    }


def fill(data_dir: Path, count: int, queued: int = QUEUED, database: str = "") -> None:
    """Create `count` jobs with runs, replicas, labels and events: most succeeded, some failed, the last ones queued.
    `database`: the address of a PostgreSQL, else they are in the directory."""
    data_dir.mkdir()
    chance = random.Random(7)  # noqa: S311 - the same jobs each time
    now = datetime.now(UTC)
    store = Store(database, durable=False) if database else Store.at(data_dir, durable=False)
    with filling(store) as writer:
        writer.save_agent(agent_info("a", 1, 2**30), "", (), now)
        for first in range(0, count, _AT_ONCE):
            rows: Rows = defaultdict(list)
            for number in range(first, min(first + _AT_ONCE, count)):
                created = now - timedelta(minutes=count - queued + QUEUED - number)
                _add_job(rows, chance, number, created)
                if number < count - queued:
                    _end(rows, failed=chance.random() < 0.1)
            for kind, some in rows.items():
                writer.session.execute(insert(kind), some)
        if database:  # as PostgreSQL does by itself within a minute
            writer.session.execute(text("ANALYZE"))
    store.close()


def _add_job(rows: Rows, chance: random.Random, number: int, created: datetime) -> None:
    labels = {"team": f"t{number % 20}", "stage": chance.choice(("try", "final"))}
    if number in PINNED:
        labels["pinned"] = "yes"
    job = _job_row(number, 5, f"job_{number:07}", created, _replica(4)) | {"labels": labels}
    rows[JobRow].append(job)
    rows[JobLabelRow] += [{"job_key": job["key"], "name": name, "value": value} for name, value in labels.items()]
    rows[EventRow] += [
        _event(job["key"], 1, created, "created", "Validating job requirements..."),
        _event(job["key"], 2, created, "queued", f"Job {job['job_id']} is queued."),
    ]


def _end(rows: Rows, failed: bool) -> None:
    """Let the last job have one run, of one replica, that has ended."""
    job = rows[JobRow][-1]
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
    rows[RunRow].append({**run, **times, "acknowledged": True, "verdict": verdict})
    rows[ReplicaRow].append(
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
    )
    accuracy = (job["key"] * 37 % 1000) / 1000
    rows[JobParameterRow] += [
        {"job_key": job["key"], "name": name, "value": str(value), "number": value}
        for name, value in (("lr", 10.0 ** -(job["key"] % 5)), ("seed", float(job["key"])), ("layers", 3.0))
    ]
    rows[JobMetricRow] += [
        {
            "job_key": job["key"],
            "name": name,
            "step": 4000,
            **dict.fromkeys(("last", "best", "lowest", "highest"), value),
        }
        for name, value in (("loss", 1 - accuracy), ("accuracy", accuracy))
    ]
    rows[EventRow].append(_event(job["key"], 3, ended, "job", message, "RUNNING", job["state"].value))


def _event(
    key: int, number: int, at: datetime, kind: str, message: str, before: str = "", after: str = ""
) -> dict[str, Any]:
    fields = {"kind": kind, "message": message, "before": before, "after": after}
    return {"job_key": key, "number": number, "time": at, **fields}
