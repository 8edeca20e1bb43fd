"""Latency of the dashboard's pages with 50,000 jobs in the database, relative to 50 jobs.

Two servers are requested alternately for the same pages over HTTP; the result is the ratio of the medians.
"""

import argparse
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
from sqlalchemy import insert

from trainyard_protocol.states import JobState, Outcome, Reason, ReplicaState, RunState
from trainyard_protocol.sync import AgentInfo, Capacity
from trainyard_server.storage.db.models import EventRow, JobLabelRow, JobRow, ReplicaRow, RunRow
from trainyard_server.storage.db.repository import Store

FEW, MANY = 50, 50_000
TOKEN = "of-this-benchmark"  # noqa: S105 - of two servers on loopback that live for minutes
QUEUED = 20
"""Number of queued jobs, in both."""
PINNED = range(7, 10)
"""Jobs with a label that no other has, in both."""

PAGES = {
    "the list": "/",
    "its second page": "/?page=2",
    "by name": "/?sort=name",
    "by owner": "/?sort=owner",
    "by end": "/?sort=-ended",
    "failed jobs": "/?state=FAILED",
    "queued jobs": "/?state=QUEUED",
    "a label": "/?label=team=t3",
    "a label of three jobs": "/?label=pinned=yes",
    "a label, failed": "/?label=team=t3&state=FAILED",
    "a label of every second job": "/?label=stage=final",
    "a project": "/?project=p3",
    "an owner": "/?owner=o3",
    "text in many names": "/?q=job",
    "text in one name": "/?q=job_0000007",
    "text in no name": "/?q=nothing_like_it",
    "the last day": "/?since=24h",
    "failing": "/?trouble=1",
    "a job": "/projects/p2/jobs/job_0000007",
    "a job's config": "/projects/p2/jobs/job_0000007/config",
}


def main() -> None:
    options = _parser().parse_args()
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        clients = []
        for count in (FEW, options.jobs):
            data_dir = directory / str(count)
            fill(data_dir, count)
            clients.append(stack.enter_context(serving(data_dir, directory)))
        print(f"{options.jobs:,} jobs against {FEW}, medians of {options.rounds} alternating rounds\n")
        print("| page | lines shown | with 50 | ratio | rounds |\n|---|---|---|---|---|")
        for name, path in PAGES.items():
            lines = " to ".join(str(client.get(path).text.count("data-row")) for client in clients)
            few, many = measure(clients, path, options.rounds)
            ratio = statistics.median(many) / statistics.median(few)
            each = sorted(b / a for a, b in zip(few, many, strict=True))
            low, high = each[len(each) // 10], each[-len(each) // 10 - 1]
            print(
                f"| {name} | {lines} | {statistics.median(few) * 1000:.0f} ms | {ratio:.2f} | {low:.2f} to {high:.2f} |"
            )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="benchmarks.pages", description=__doc__)
    parser.add_argument("--rounds", type=int, default=30, help="default: %(default)s")
    parser.add_argument("--jobs", type=int, default=MANY, help="default: %(default)s")
    return parser


def measure(clients: list[httpx.Client], path: str, rounds: int) -> tuple[list[float], list[float]]:
    """Seconds of each round on each server, in alternating order."""
    seconds: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds + 2):
        for at in (0, 1) if number % 2 else (1, 0):
            began = time.perf_counter()
            response = clients[at].get(path)
            elapsed = time.perf_counter() - began
            response.raise_for_status()
            if number >= 2:  # warm-up
                seconds[at].append(elapsed)
    return seconds


@contextmanager
def serving(data_dir: Path, directory: Path) -> Iterator[httpx.Client]:
    token_file = directory / "token"
    token_file.write_text(TOKEN)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "trainyard_server", "--data-dir", str(data_dir), "--port", str(port)]
    process = subprocess.Popen([*command, "--token-file", f"admin={token_file}", "--log-level", "error"])
    headers = {"Authorization": f"Bearer {TOKEN}", "Accept": "text/html"}
    client = httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=60)
    try:
        for _ in range(600):
            try:
                client.get("/healthz")
                break
            except httpx.TransportError:
                time.sleep(0.1)
        yield client
    finally:
        client.close()
        process.terminate()
        process.wait()


def fill(data_dir: Path, count: int) -> None:
    """Create `count` jobs with runs, replicas, labels and events: most succeeded, some failed, a few queued."""
    data_dir.mkdir()
    chance = random.Random(7)  # noqa: S311 - the same jobs each time
    now = datetime.now(UTC)
    store = Store.at(data_dir, durable=False)
    with store.write() as writer:
        info = AgentInfo(
            agent_id="a",
            name="host",
            version="0.1.0",
            runtime="fake",
            capacity_mode="strict",
            runs_images=False,
            capacity=Capacity(cpus=(0,), memory_bytes=2**30),
        )
        writer.save_agent(info, (), now)
        rows: dict[type, list[dict[str, Any]]] = {
            kind: [] for kind in (JobRow, JobLabelRow, RunRow, ReplicaRow, EventRow)
        }
        for number in range(count):
            for kind, some in _job(chance, number, count, now).items():
                rows[kind] += some
            if number % 5000 == 4999 or number == count - 1:
                for kind, some in rows.items():
                    if some:
                        writer.session.execute(insert(kind), some)
                    some.clear()
    store.close()


def _job(chance: random.Random, number: int, count: int, now: datetime) -> dict[type, list[dict[str, Any]]]:
    key = number + 1
    created = now - timedelta(minutes=count - number)
    queued = number >= count - QUEUED
    failed = not queued and chance.random() < 0.1
    state = JobState.QUEUED if queued else JobState.FAILED if failed else JobState.SUCCEEDED
    labels = {"team": f"t{number % 20}", "stage": chance.choice(("try", "final"))}
    if number in PINNED:
        labels["pinned"] = "yes"
    gang = [
        {
            "task": "master-replica-0",
            "machine_type": "n1-standard-4",
            "vcpus": 4,
            "memory_bytes": 15 * 2**30,
            "accelerator_type": "",
            "accelerator_count": 0,
        }
    ]
    ended = created + timedelta(minutes=40)
    message = "The replica master 0 exited with a non-zero status of 1."
    reason = Reason.PROGRAM_ERROR if failed else Reason.COMPLETED
    outcome = Outcome.FAILED if failed else Outcome.SUCCEEDED
    verdict = {"outcome": outcome, "reason": reason, "message": message, "exit_code": int(failed)}
    job = {
        "key": key,
        "project": f"p{number % 5}",
        "job_id": f"job_{number:07}",
        "owner": f"o{number % 12}",
        "state": state,
        "training_input": {
            "scaleTier": "CUSTOM",
            "masterType": "n1-standard-4",
            "pythonModule": "trainer.task",
        },
        "gang": gang,
        "priority": 0,
        "labels": labels,
        "revision": 0,
        "created_at": created,
        "queued_at": created,
        "started_at": None if queued else created + timedelta(minutes=1),
        "ended_at": None if queued else ended,
        "error_message": message if failed else "",
        "verdict": verdict if not queued else None,
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
        run = f"{number:032x}"
        points = [[step, 2.3 / (1 + step / 500)] for step in range(0, 4000, 100)]
        curve = {"name": "loss", "step": 4000, "value": 0.25, "points": points}
        rows[RunRow] = [
            {
                "run_id": run,
                "job_key": key,
                "number": 1,
                "agent_id": "a",
                "state": RunState.ENDED,
                "created_at": created,
                "ended_at": ended,
                "acknowledged": True,
                "verdict": verdict,
            }
        ]
        rows[ReplicaRow] = [
            {
                "run_id": run,
                "task": "master-replica-0",
                "position": 0,
                "state": ReplicaState.EXITED,
                "machine_type": "n1-standard-4",
                "cpus": [0],
                "gpus": [],
                "memory_bytes": 2**30,
                "started_at": created + timedelta(minutes=1),
                "finished_at": ended,
                "exit_code": int(failed),
                "reason": reason,
                "log_complete": True,
                "step": 4000,
                "steps": 4000,
                "metrics": {"main": "loss", "epoch": 5, "epochs": 5, "metrics": [curve]},
            }
        ]
        rows[EventRow].append(_event(key, 3, ended, "job", message, "RUNNING", state.value))
    return rows


def _event(
    key: int, number: int, at: datetime, kind: str, message: str, before: str = "", after: str = ""
) -> dict[str, Any]:
    fields = {"kind": kind, "message": message, "run": None, "task": "", "before": before, "after": after}
    return {"job_key": key, "number": number, "time": at, **fields}


if __name__ == "__main__":
    main()
