"""Agents that lie: no report breaks a page."""

from typing import Any

import pytest
from sqlalchemy import update

from beds.databases import on_every_database
from integration.api.api_support import ADMIN, AGENT, START, Server, running_agent
from trainyard_protocol.answers.usage import UsageBatch, UsageSample
from trainyard_protocol.states import JobState, RunState
from trainyard_protocol.wire.agents import AGENT_KEY
from trainyard_protocol.wire.logs import LogChunk, LogLine
from trainyard_protocol.wire.sync import ReplicaReport, RunReport, SyncRequest
from trainyard_server.control.removal import remove_job
from trainyard_server.services.jobs.known_jobs import known_job
from trainyard_server.storage.db.base.models import JobRow, RunRow

JOB = "/projects/p/jobs/job"
VIEWS = ("", "why", "usage", "explain", "metrics", "metrics.csv", "logs", "logs/page", "logs/download")
PAGES = (
    *("/", "/cluster", JOB, f"{JOB}/logs", f"{JOB}/metrics", f"{JOB}/config", f"/v1{JOB}"),
    *(f"/trainyard/v1/{path}" for path in ("status", "health?deep=true", "jobs:active")),
    *(f"/trainyard/v1{JOB}/{view}".rstrip("/") for view in VIEWS),
)
LOGS = "runs/r/replicas/master-replica-0/logs"
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
        sample = {"run_id": run, "task": "master-replica-0", "time": time, "memory_bytes": 2**63 - 1, "cpu": 1e308}
        report(api, "/agent/v1/usage", {"samples": [sample]})
        text = '{"event": "progress", "step": 1, "loss": 1, "epoch": 1.5, "epochs": 4611686018427387904}'
        lines = (LogLine(time=time, stream="stdout", text=text), LogLine(time="\0", stream="stderr", text="\0"))
        start = agent.shipped.get((run, "master-replica-0"), 0)
        receipt = agent.ship("master-replica-0", LogChunk.of(start, lines), agent.run)
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


def test_message_of_more_than_an_agent_sends_is_refused_before_it_is_parsed(
    api: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    block = b'{"time":"","stream":"stdout","texts":[""]},'
    table = [
        ("sync", b'{"runs": [' + b"{}," * 100_000 + b"{}]}", 400),
        ("sync", b'{"agent": {"x": {' + b'"a":1,' * 100_001 + b'"a":1}}}', 400),
        ("sync", b'{"x": [' + b'"",' * 100_001 + b'""]}', 400),
        ("sync", b" " * (4 * 2**20 + 1), 413),
        ("usage", b'{"samples": [' + b"{}," * 100_000 + b"{}]}", 400),
        ("usage", b" " * (4 * 2**20 + 1), 413),
        (LOGS, b'{"start": 0, "blocks": [' + block * 20_000 + b"{}]}", 400),
        (LOGS, b" " * (13 * 2**19 + 1), 413),
    ]
    for kind in (SyncRequest, UsageBatch, LogChunk):
        monkeypatch.setattr(kind, "model_validate_json", None)
    for path, body, status in table:
        answer = api.client.post(f"/agent/v1/{path}", content=body, headers=AGENT)
        assert (answer.status_code, len(answer.content) < 5000) == (status, True), (path, body[:30])


def test_message_as_large_as_an_agent_sends_is_taken(api: Server) -> None:
    """Thousands of replicas, each quote and backslash of a line escaped, or a single line of a megabyte."""
    agent = running_agent(api)
    replicas = tuple(ReplicaReport(task=f"worker-replica-{n}", state="RUNNING", started_at=START) for n in range(1000))
    runs = tuple(RunReport(run_id=f"{n:032}", replicas=replicas) for n in range(6))
    body = SyncRequest(agent=agent.info, runs=runs).model_dump_json()
    api.done("POST", "/agent/v1/sync", AGENT, content=body)
    receipt = agent.log(*['{"a": ["\\\\", {}, "\\""]}' * 20] * 1000)
    receipt = agent.log("\x01" * 2**20)
    assert receipt.next == 1001


def test_no_lines_leave_a_traceback_in_the_servers_log(
    api: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Lines of a run that is unknown, another agent's, ended, or deleted while they are stored; with
    places and ends that there cannot be, and texts that are none. Nothing of a deleted job stays."""
    backend = api.use_cases.backend
    message: dict[str, Any] = {"time": "2026-11-20T12:00:00Z", "stream": "stdout", "texts": ["message"]}
    wrong = {"count": 1, "sha256": "0" * 64}
    texts: tuple[Any, ...] = ("\0\x1b", "x" * 10**6, None)
    bodies: list[Any] = [
        *({"start": start, "blocks": [message]} for start in (0, 7, -1, 2**63, 2**70, "x", None)),
        {"start": 0, "blocks": [message, message], "end": wrong},
        *({"start": 0, "end": {"count": count, "sha256": "x"}} for count in (-1, 2**70)),
        {"start": 0, "blocks": [message], "gap": {"after": "\0", "before": "x" * 999}, "resume": True},
        *({"start": 0, "blocks": [message | {"texts": [text]}]} for text in texts),
        b'{"start": 0, "blocks": [{"time": "", "stream": "stdout", "texts": ["\\ud800"]}]}',
        b'{"start": 0, "blocks": [{"time": "", "stream": "stdout", "texts": ["\xff"]}]}',
        b"[]",
        {"start": 0, "blocks": [message], "end": wrong},
    ]

    def send(run: str, body: Any, task: str = "master-replica-0", headers: Any = AGENT) -> int:
        content = {"content": body} if isinstance(body, bytes) else {"json": body}
        answer = api.client.post(f"/agent/v1/runs/{run}/replicas/{task}/logs", headers=headers, **content)
        assert answer.status_code < 500, (run, task, body, answer.text)
        return answer.status_code

    agent = running_agent(api, "lied")
    run = agent.run.run_id
    for body in bodies:
        for unknown in ("none", "%00", "%ed%a0%80"):
            assert send(unknown, body) in (400, 404)
            assert send(run, body, unknown) in (400, 404)
        assert send(run, body, headers=AGENT | {AGENT_KEY: "1" * 64}) in (400, 403)
    assert {send(run, body) for body in bodies} == {200, 400}
    agent.exit(logs=False)
    assert {send(run, body) for body in bodies} == {200, 400}
    assert api.job("lied")["state"] == "SUCCEEDED"
    api.delete_job("lied")
    assert {send(run, body) for body in bodies} == {400, 404}

    def deleted_at(number: int, name: str) -> None:
        """A job that is deleted when its lines come to a step of their way."""
        job_id = f"deleted_{name}_{number}"
        run = running_agent(api, job_id).run.run_id
        step = getattr(backend.logs, name)

        def delete_first(*given: Any, **named: Any) -> Any:
            monkeypatch.setattr(backend.logs, name, step)
            with backend.store.write() as writer:
                writer.session.execute(update(RunRow).values(state=RunState.ENDED))
                writer.session.execute(update(JobRow).values(state=JobState.CANCELLED))
            backend.store._is_unsure = True  # it was written past the writer
            with backend.store.read() as reader:
                assert remove_job(backend, known_job(reader, "p", job_id).key, "somebody")
            return step(*given, **named)

        monkeypatch.setattr(backend.logs, name, delete_first)
        assert send(run, bodies[number]) in ((404,) if name != "verify" else (200, 404))
        monkeypatch.setattr(backend.logs, name, step)
        assert not (backend.settings.data_dir / "logs" / "p" / job_id).exists()

    gap = next(number for number, body in enumerate(bodies) if isinstance(body, dict) and "gap" in body)
    last = len(bodies) - 1
    for number, name in ((gap, "count"), (gap, "append"), (0, "append"), (last, "append"), (last, "verify")):
        deleted_at(number, name)
    assert [record.getMessage() for record in caplog.records if record.exc_info] == []


def test_run_is_open_to_the_key_of_its_agent_alone(api: Server) -> None:
    """Another agent's key, a false one or none: each call is refused, changes nothing and ends no call of the agent."""
    staged = api.upload(name="trainer.whl")
    agent = running_agent(api, packageUris=[staged["uri"]])
    before = api.detail()
    info, run = agent.info.model_dump(mode="json"), agent.run.run_id
    report = {"run_id": run, "replicas": [{"task": "master-replica-0", "state": "EXITED"}]}
    sample = UsageSample(run_id=run, task="master-replica-0", time=api.clock()).model_dump(mode="json")
    sync = "/agent/v1/sync", {"agent": info, "runs": [report]}
    usage = "/agent/v1/usage", {"samples": [sample]}
    logs = f"/agent/v1/runs/{run}/replicas/master-replica-0/logs", {"start": 0}
    package = f"/agent/v1/staging/{staged['sha256']}/trainer.whl", None
    links = f"/agent/v1/runs/{run}/packages", None

    def call(headers: dict[str, str], path: str, body: Any) -> tuple[int, Any]:
        method = "GET" if body is None else "POST"
        answer = api.client.request(method, path, json=body, headers=headers)
        return answer.status_code, answer.json()

    strange = AGENT | {AGENT_KEY: "1" * 64}
    assert [call(strange, *each)[0] for each in (sync, usage, logs, package, links)] == [403] * 5
    assert "agent.json" in call(strange, *sync)[1]["error"]["message"]
    other = "/agent/v1/sync", {"agent": info | {"agent_id": "other"}, "runs": [report]}
    assert call(strange, *other)[1]["runs"] == []
    assert call(strange, *usage) == (200, {"taken": 0})
    assert [call(strange, *each)[0] for each in (sync, logs, package, links)] == [403, 403, 404, 403]
    for wrong in ({}, {AGENT_KEY: ""}, {AGENT_KEY: "1" * 63}, {AGENT_KEY: "A" * 64}):
        headers = {"Authorization": AGENT["Authorization"]} | wrong
        assert [call(headers, *each)[0] for each in (sync, usage, logs, package, links)] == [401] * 5
    assert api.detail() == before

    assert api.client.get(package[0], headers=AGENT).content == b"package"
    agent.exit()
    assert [call(AGENT, *each)[0] for each in (package, links)] == [404, 404]
    assert api.job()["state"] == "SUCCEEDED"
