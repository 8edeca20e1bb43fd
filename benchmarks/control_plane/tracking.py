"""Calls of MLflow that log, to this server and to its own."""

import itertools
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
from sqlalchemy import update

from benchmarks.filled import fill, started
from benchmarks.rows import Row, Samples, interleaved
from benchmarks.tools import mlflow
from trainyard_protocol.states import JobState, ReplicaState, RunState
from trainyard_server.capabilities.tracking.targets import run_id
from trainyard_server.domain.access.run_tokens import RunTokens
from trainyard_server.storage.db.base.models import JobRow, ReplicaRow, RunRow
from trainyard_server.storage.db.store import Store
from trainyard_server.storage.key_files import key_of

_API = "/api/2.0/mlflow"
_METRICS = 1000
_TIME_MS = 1_700_000_000_000
_JOBS, _QUEUED = 30, 20
_KEY = 1  # of a job that runs
_RUN = f"{_KEY - 1:032x}"


@contextmanager
def _job() -> Iterator[tuple[httpx.Client, str]]:
    """A client with the token of a run, and the job as a run of MLflow."""
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        data = Path(directory) / "data"
        fill(data, _JOBS, _QUEUED)
        store = Store.at(data, durable=False)
        with store.write() as writer:
            now = datetime.now(UTC)
            running: dict[str, Any] = {"state": JobState.RUNNING, "ended_at": None, "started_at": now}
            writer.session.execute(update(JobRow).where(JobRow.key == _KEY).values(**running))
            of_run = update(RunRow).where(RunRow.job_key == _KEY)
            writer.session.execute(of_run.values(state=RunState.RUNNING, ended_at=None, verdict=None))
            of_replica = update(ReplicaRow).where(ReplicaRow.run_id == _RUN)
            exit_values = dict.fromkeys(("finished_at", "exit_code", "reason"))
            writer.session.execute(of_replica.values(state=ReplicaState.RUNNING, log_complete=False, **exit_values))
        store.close()
        server = stack.enter_context(started(Path(directory)))
        token = RunTokens(key_of(data / "keys" / "sessions")).token(_RUN)
        client = httpx.Client(base_url=server.client.base_url, headers={"Authorization": f"Bearer {token}"}, timeout=60)
        yield stack.enter_context(client), run_id(_KEY)


def _batches(quick: bool) -> Samples:
    """Milliseconds for a call of log-batch with 1,000 metrics of ten names, each round at further steps."""
    with _job() as (client, job), mlflow() as (other, run):
        steps = itertools.count()

        def log(to: httpx.Client, target: str) -> float:
            first = next(steps) * _METRICS
            metrics = [
                {
                    "key": f"metric_{at % 10}",
                    "value": 1 / (1 + at),
                    "step": first + at // 10,
                    "timestamp": 1_700_000_000_000,
                }
                for at in range(_METRICS)
            ]
            began = time.perf_counter()
            to.post(f"{_API}/runs/log-batch", json={"run_id": target, "metrics": metrics}).raise_for_status()
            return (time.perf_counter() - began) * 1000

        return interleaved(lambda: log(client, job), lambda: log(other, run), 5 if quick else 30, "ms", warm_up=3)


ROWS = (
    Row(
        "log-batch",
        "a call of MLflow's log-batch with 1,000 metrics, SQLite",
        "MLflow's own server, SQLite",
        1.0,
        _batches,
        "reading and checking a thousand values, and one durable row of them",
        in_quick=False,
    ),
)
