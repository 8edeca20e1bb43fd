"""Agents that lie: no report, and no row that was stored before reports had bounds, breaks a page."""

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import update

from databases import on_every_database
from integration.api.api_support import ADMIN, AGENT, Server, running_agent
from trainyard_protocol.sync import LogChunk, LogLine, ReplicaReport, Stall
from trainyard_server.storage.db.models import ReplicaRow, RunRow
from trainyard_server.storage.streams import Stream
from trainyard_server.storage.usage.records import UsagePoint

PAGES = (
    "/",
    "/cluster",
    "/projects/p/jobs/job",
    "/projects/p/jobs/job/logs",
    "/projects/p/jobs/job/metrics",
    "/projects/p/jobs/job/config",
    "/v1/projects/p/jobs/job",
    "/trainyard/v1/status",
    "/trainyard/v1/health?deep=true",
    "/trainyard/v1/jobs:active",
    "/trainyard/v1/projects/p/jobs/job",
    "/trainyard/v1/projects/p/jobs/job/why",
    "/trainyard/v1/projects/p/jobs/job/usage",
    "/trainyard/v1/projects/p/jobs/job/explain",
    "/trainyard/v1/projects/p/jobs/job/metrics",
    "/trainyard/v1/projects/p/jobs/job/metrics.csv",
    "/trainyard/v1/projects/p/jobs/job/logs",
    "/trainyard/v1/projects/p/jobs/job/logs/page",
    "/trainyard/v1/projects/p/jobs/job/logs/download",
)
TIMES = ("0001-01-01T00:00:00+14:00", "0001-01-01T00:00:00", "9999-12-31T23:59:59.999999-14:00")


def broken(api: Server) -> list[str]:
    """The pages that are an error."""
    api.use_cases.backend.progress.flush()
    api.tick(1)
    answers = {path: api.client.get(path, headers=ADMIN | {"Accept": "text/html"}) for path in PAGES}
    return [f"{path}: {answer.status_code}" for path, answer in answers.items() if answer.status_code >= 500]


def report(api: Server, path: str, body: Any) -> None:
    answer = api.client.post(path, json=body, headers=AGENT)
    assert answer.status_code in (200, 400), answer.text


@on_every_database
def test_no_report_breaks_a_page(api: Server) -> None:
    agent = running_agent(api)
    run = agent.run.run_id
    whole = agent.info.model_dump(mode="json")
    replica = ReplicaReport(task="master-replica-0", state="RUNNING", stacks="\0" * 9)
    for time in TIMES:
        stall = {"step": 2**80, "since": time, "limit_s": 1e308, "for_s": -1e308, "longest_s": 1e300}
        lies = replica.model_dump(mode="json") | {"started_at": time, "stall": stall, "address": "x" * 9000}
        unknown = lies | {"task": "worker-replica-99999999999999999999"}
        runs = [{"run_id": run, "replicas": [lies, unknown], "activity": "\0\u2028" * 9000}]
        runs.append({"run_id": "x" * 9000, "replicas": [lies]})
        odd = whole | {"name": "\u202e" * 9000, "capacity": {"cpus": [-1, 2**70], "memory_bytes": -(2**70)}}
        report(api, "/agent/v1/sync", {"agent": whole, "runs": runs})
        report(api, "/agent/v1/sync", {"agent": odd | {"agent_id": f"odd-{time[:4]}"}, "runs": runs})
        sample = {
            "run_id": run,
            "task": "master-replica-0",
            "time": time,
            "memory_bytes": 2**63 - 1,
            "cpu": 1e308,
        }
        report(api, "/agent/v1/usage", {"samples": [sample]})
        text = '{"event": "progress", "step": 1, "loss": 1, "epoch": 1.5, "epochs": 4611686018427387904}'
        lines = (
            LogLine(time=time, stream="stdout", text=text),
            LogLine(time="\0", stream="stderr", text="\0"),
        )
        start = agent.shipped.get((run, "master-replica-0"), 0)
        receipt = agent.ship("master-replica-0", LogChunk(start=start, lines=lines), agent.run)
        agent.shipped[run, "master-replica-0"] = receipt.next
    assert not broken(api)


@on_every_database
def test_run_ends_whatever_its_last_lines_are(api: Server) -> None:
    """PostgreSQL stores no NUL: such a line once kept the run from being decided."""
    agent = running_agent(api)
    agent.log("\0 nul", "\x1b]0;title\x07\u2028\x85", '{"severity": ' + "[" * 3000, "\ufffe\U0010ffff")
    agent.exit(code=2**40, message="\0")
    job = api.job()
    assert (job["state"], "\ufffd nul" in job["errorMessage"]) == ("FAILED", True)
    assert not broken(api)


def test_no_row_of_before_breaks_a_page(api: Server) -> None:
    running_agent(api)
    backend = api.use_cases.backend
    for year in (1, 9999):
        time = datetime(year, 1, 1, tzinfo=UTC)
        stall = Stall(step=2**80, since=time, limit_s=1e308, for_s=-1e308).model_dump(mode="json")
        with backend.store.write() as writer:
            times = {"started_at": time, "step_at": time, "durable_at": time, "stall": stall}
            writer.session.execute(update(ReplicaRow).values(times | {"step": 1, "durable_step": 1}))
            writer.session.execute(update(RunRow).values(activity="x" * 10**5, created_at=time))
        point = UsagePoint(time.timestamp() - 10**5, 1.0, 2**64 - 2)
        backend.usage.add("p", "job", {Stream(1, "master-replica-0"): [point, point._replace(time=1e300)]})
        assert not broken(api)


def test_report_of_many_values_is_refused_before_it_is_parsed(api: Server) -> None:
    many = b"{}," * 600_000
    logs = "/agent/v1/runs/r/replicas/master-replica-0/logs"
    for path, body, status in (
        ("/agent/v1/sync", b'{"runs": [' + many + b"{}]}", 400),
        ("/agent/v1/usage", b'{"samples": [' + many + b"{}]}", 400),
        (logs, b'{"start": 0, "lines": [' + many + b"{}]}", 400),
        (logs, b" " * (8 * 2**20 + 1), 413),
    ):
        answer = api.client.post(path, content=body, headers=AGENT)
        assert (answer.status_code, len(answer.content) < 5000) == (status, True), answer.text[:300]
