"""The audit: each call that changes something has one row, done or refused, and refused calls cannot fill the disk."""

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from beds.databases import on_every_database
from integration.api.access.changes import DONE, concrete
from integration.api.api_support import (
    ADMIN,
    AGENT,
    ALICE,
    BOB,
    TOKENS,
    VERA,
    Clock,
    ScriptedAgent,
    Server,
    custom_job,
    of_custom_job,
    of_tuning_job,
    package_job,
    running_agent,
    server,
    tuning_job,
)
from trainyard_protocol.answers.audit import AuditEntry
from trainyard_protocol.wire.sync import SyncRequest
from trainyard_server.app import ACCESS
from trainyard_server.domain.access.route_access import OIDC_CALLBACK, STORAGE_AREAS, Access
from trainyard_server.services.people.refusal_counts import MOST_ROWS, ROWS
from trainyard_server.storage.db.tables import audit

JOBS = "/v1/projects/p/jobs"
JOB = "/trainyard/v1/projects/p/jobs/job"
TOKENS_PATH = "/trainyard/v1/tokens"
AUDIT = "/trainyard/v1/audit"
CALLER = {"User-Agent": "curl/8\x7f" + "x" * 300, "X-Request-Id": "r-1"}
ATTACHMENTS = "/trainyard/v1/projects/{project}/jobs/{job_id}/attachments"
ELSEWHERE = (OIDC_CALLBACK, "/agent/v1/runs/{run_id}/secrets", ATTACHMENTS, *STORAGE_AREAS)
"""The beginnings of routes with an action whose rows are tested in test_single_sign_on, test_secrets,
test_attachments and test_storage_calls."""

CHANGES = [route for route in ACCESS.rows if route.action and not route.path.startswith(ELSEWHERE)]


def rows(api: Server) -> list[AuditEntry]:
    """All rows, the oldest first."""
    with api.use_cases.backend.store.read() as reader:
        return list(audit.entries(reader, audit.AuditQuery(), 10_000))[::-1]


class Recorder:
    """Calls, and the rows that each of them adds."""

    def __init__(self, api: Server) -> None:
        self.api = api
        self._count = len(rows(api))

    def __call__(self, method: str, path: str, who: dict[str, str], **given: Any) -> list[AuditEntry]:
        self.answer: httpx.Response = self.api.client.request(method, path, headers=who | CALLER, **given)
        found = rows(self.api)
        new, self._count = found[self._count :], len(found)
        return new


@pytest.fixture
def record(api: Server) -> Recorder:
    return Recorder(api)


SUBJECTS = {"jobs": "job", "agents": "laptop", "packages": "a.whl"}
SUBJECTS |= dict.fromkeys(("members", "secrets", "channels", "views", "google-keys"), "x")


_OF_VERTEX = {"customJobs": "custom", "hyperparameterTuningJobs": "tuned"}
"""Collections of Vertex AI, and the job of each that is changed."""


@pytest.fixture
def api(tmp_path: Path, clock: Clock) -> Iterator[Server]:
    (tmp_path / "quotas.yaml").write_text("{}")
    with server(
        tmp_path / "server",
        clock,
        quotas=tmp_path / "quotas.yaml",
        audit_file=tmp_path / "audit.jsonl",
        google_domain="trainyard.localhost:8472",
    ) as running:
        yield running


def test_each_change_has_one_row_done_or_refused(api: Server, record: Recorder, tmp_path: Path) -> None:
    ScriptedAgent(api).sync()
    order = list(DONE)
    assert {route.action for route in CHANGES} == set(order), "a route with an action needs a request above"
    made, _ = api.token(ALICE)
    bodies = {"customJobs": custom_job(packageUris=[]), "hyperparameterTuningJobs": tuning_job()}
    api.done("POST", JOBS, ALICE, json=of_custom_job(bodies["customJobs"], "custom", "x"))
    api.done("POST", JOBS, ALICE, json=of_tuning_job(bodies["hyperparameterTuningJobs"], "tuned", "x"))
    record._count += 3
    for route in sorted(CHANGES, key=lambda route: order.index(route.action or "")):
        action = route.action or ""
        collection = next((name for name in _OF_VERTEX if f"/{name}" in route.path), "")
        path = concrete(route, token_id=made, job_id=_OF_VERTEX.get(collection, "job"))
        if route.access is not Access.NOBODY:
            (refused,) = record(route.method, path, {})
            assert (refused.action, refused.outcome, refused.actor) == (action, "refused", ""), action
        if route.access not in (Access.NOBODY, Access.PERSON):
            (refused,) = record(route.method, path, VERA)
            assert (refused.actor, refused.outcome, refused.status) == ("vera", "refused", 403), action
            assert (refused.project, refused.role) == ("p" if "{project}" in route.path else "", "viewer"), action
        who, given = DONE[action]
        if collection and action == "jobs.create":
            given = {"json": bodies[collection]}
        if action == "sign-out":
            who = api.session("alice")
        (done,) = record(route.method, path, who, **given)
        owner = "admin" if who is ADMIN else "alice"
        assert (done.action, done.outcome, done.actor) == (action, "done", owner), record.answer.text
        assert done.status == record.answer.status_code
        assert done.project == ("p" if "{project}" in route.path else ""), action
        subject = SUBJECTS.get(action.partition(".")[0], "")
        if action == "google-keys.create":
            subject = record.answer.json()["number"]
        if action == "tokens.create":
            subject = record.answer.json()["token"]["token_id"]
        if collection:
            is_new = action == "jobs.create"
            subject = record.answer.json()["name"].rpartition("/")[2] if is_new else _OF_VERTEX[collection]
        assert done.subject == (made if action == "tokens.revoke" else subject), action
        assert done.credential.startswith("session of token:file-" if action == "sign-out" else "token:file-")
        assert (done.address, done.request_id) == ("127.0.0.1", "r-1")
        assert done.user_agent == ("curl/8\ufffd" + "x" * 300)[:200]
    text = (tmp_path / "audit.jsonl").read_text()
    assert [AuditEntry.model_validate_json(line) for line in text.splitlines()] == rows(api)
    assert not [secret for secret in ("never-shown", *(token.secret for token in TOKENS)) if secret in text]


def test_row_is_committed_with_the_change_or_not_at_all(
    api: Server, record: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server's end between a change and its answer loses no row; a change that is rolled back leaves no `done`."""

    api.create()
    record._count += 1
    with monkeypatch.context() as patch:
        patch.setattr(api.use_cases.audit, "record", lambda *_: None)
        (row,) = record("POST", f"{JOBS}/job:cancel", ADMIN)
        assert (row.action, row.outcome, row.actor, row.subject) == ("jobs.cancel", "done", "admin", "job")
    api.create("other")
    record._count += 1
    with monkeypatch.context() as patch:
        patch.setattr(api.use_cases.controller, "advance", _broken)
        (row,) = record("POST", f"{JOBS}/other:cancel", ADMIN)
        assert (record.answer.status_code, row.status, row.outcome) == (500, 500, "done"), "it is being cancelled"
    with monkeypatch.context() as patch:
        patch.setattr("trainyard_server.services.jobs.jobs.check_labels", _broken)
        params = {"updateMask": "labels"}
        (row,) = record("PATCH", f"{JOBS}/other", ADMIN, json={"labels": {"a": "b"}}, params=params)
        assert (row.action, row.status, row.outcome) == ("jobs.update", 500, "failed")


def _broken(*_: object) -> None:
    raise RuntimeError


def test_reads_dry_runs_and_agents_leave_rows_only_when_they_are_refused(api: Server, record: Recorder) -> None:
    agent = running_agent(api)
    record._count = len(rows(api))
    body = {"jobId": "next", "trainingInput": package_job()}
    assert record("GET", JOB, VERA) == []
    assert record("POST", "/trainyard/v1/projects/p/configs:check", VERA, json={"text": "a: b"}) == []
    assert record("POST", JOBS, ALICE, json=body, params={"validateOnly": "true"}) == []
    assert record("GET", "/", {"Accept": "text/html"}) == []
    agent.log("a line")
    assert record("GET", "/healthz", {}) == []
    (row,) = record("POST", JOBS, VERA, json=body, params={"validateOnly": "true"})
    assert (row.actor, row.action, row.outcome) == ("vera", "jobs.create", "refused")
    (row,) = record("GET", JOB, AGENT)
    assert (row.actor, row.action) == ("agent", "GET /trainyard/v1/projects/{project}/jobs/{job_id}")
    assert (row.project, row.subject, row.status) == ("p", "job", 403)
    (row,) = record("GET", TOKENS_PATH, VERA, params={"all": "true"})
    assert (row.actor, row.status) == ("vera", 403), "refused by the use case"
    others = AGENT | {"X-Trainyard-Agent-Key": "1" * 64}
    report = SyncRequest(agent=agent.info, runs=(), seen="").model_dump_json()
    (row,) = record("POST", "/agent/v1/sync", others, content=report)
    assert (row.actor, row.action, row.status) == ("agent", "POST /agent/v1/sync", 403)
    (row,) = record("GET", "/wp-admin%E2%80%AE%0A", {"Authorization": "Bearer wrong"})
    assert (row.action, row.subject, row.status, row.actor) == ("unknown", "/wp-admin\ufffd\ufffd", 401, "")


def test_sign_ins_have_the_name_of_who_signed_in(api: Server, record: Recorder) -> None:
    (row,) = record("POST", "/sign-in", {}, data={"token": "wrong"})
    assert (row.action, row.outcome, row.status, row.actor) == ("sign-in", "refused", 401, "")
    (row,) = record("POST", "/sign-in", {}, data={"token": "agent-secret"})
    assert (row.outcome, row.status, row.actor) == ("refused", 403, "agent")
    code = api.client.post("/trainyard/v1/sign-in-codes", headers=BOB).json()["code"]
    record._count += 1
    assert record("POST", "/sign-in", api.session("alice"), data={"code": code}) == [], "a question"
    (row,) = record("POST", "/sign-in", {}, data={"code": code})
    assert (row.outcome, row.status, row.actor) == ("done", 303, "bob")
    (row,) = record("POST", "/sign-in", {}, data={"code": code})
    assert (row.outcome, row.status, row.actor) == ("refused", 401, "")
    (row,) = record("POST", "/sign-out", {"Cookie": api.session("alice")["Cookie"]})
    assert (row.action, row.outcome, row.actor) == ("sign-out", "refused", "alice"), "without the page's value"


def test_refused_calls_beyond_a_number_are_one_row_a_minute(api: Server, record: Recorder, clock: Clock) -> None:
    wrong = {"Authorization": "Bearer wrong"}
    for number in range(ROWS + 5):
        api.client.get(f"/v1/projects/p{number}/jobs", headers=wrong)
        api.client.get("/v1/projects/q/jobs", headers=AGENT)
    assert len(rows(api)) == 2 * ROWS
    clock.advance(60)
    api.use_cases.audit.write_counts()
    api.use_cases.audit.write_counts()
    counted = rows(api)[2 * ROWS :]
    assert [(row.actor, row.project, row.count) for row in counted] == [("", "", 5), ("agent", "q", 5)]
    (row,) = record("GET", "/v1/projects/p/jobs", wrong)[-1:]
    assert row.count == 1, "a new minute"
    refusals = api.use_cases.audit._refusals
    entries = [row.model_copy(update={"address": str(number)}) for number in range(MOST_ROWS + 20)]
    assert sum(map(refusals.admit, entries)) == MOST_ROWS - 1
    assert refusals.admit(row.model_copy(update={"actor": "vera"}))
    (shared,) = refusals.collect(clock(), closing=True)
    assert (shared.count, shared.address) == (21, "")


def test_file_may_be_rotated_and_may_fail(
    api: Server, record: Recorder, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "audit.jsonl"
    assert (file.stat().st_mode & 0o777, file.read_text()) == (0o600, "")
    file.rename(tmp_path / "audit.jsonl.1")
    record("POST", "/trainyard/v1/quotas:reload", ADMIN)
    assert AuditEntry.model_validate_json(file.read_text()).action == "quotas.reload"
    file.unlink()
    file.mkdir()
    (row,) = record("POST", "/trainyard/v1/quotas:reload", ADMIN)
    assert (record.answer.status_code, row.outcome) == (200, "done")
    assert "The audit file cannot be written" in caplog.text


def _row(time: datetime) -> dict[str, Any]:
    texts = {name: "" for name, field in AuditEntry.model_fields.items() if field.annotation is str}
    return texts | {"id": 0, "time": time, "outcome": "done", "status": 200}


@on_every_database
def test_operators_see_all_and_admins_their_projects(api: Server, record: Recorder, clock: Clock) -> None:
    for project, person, role in (("q", "carl", "admin"), ("p", "carl", "viewer")):
        assert api.set_role(person, role, project) == 200
    _, carl = api.token(owner="carl")
    clock.advance(3600)
    for job in ("a", "b"):
        api.create(job)

    def seen(who: dict[str, str], **params: Any) -> list[tuple[str, str, str]]:
        rows = api.done("GET", AUDIT, who, params=params)["entries"]
        return [(row["action"], row["project"], row["subject"]) for row in rows]

    everything = seen(ADMIN)
    assert len(everything) == 5
    assert everything[:2] == [("jobs.create", "p", "b"), ("jobs.create", "p", "a")]
    assert seen(carl) == seen(carl, project="q") == [("members.set", "q", "carl")]
    assert seen(ADMIN, project="p", actor="admin", action="members.set") == [("members.set", "p", "carl")]
    assert seen(ADMIN, since="30m") == everything[:2]
    assert seen(ADMIN, until="30m") == everything[2:]
    first = api.get(AUDIT, pageSize="2")
    assert seen(ADMIN, pageSize="3", pageToken=first["next_page_token"]) == everything[2:]
    assert api.get(AUDIT, pageSize="5")["next_page_token"] == ""
    for who, params, status in (
        (carl, {"project": "p"}, 403),
        (VERA, {}, 403),
        (ADMIN, {"since": "yesterday"}, 400),
        (ADMIN, {"pageToken": "x"}, 400),
        (ADMIN, {"pageSize": "-1"}, 400),
    ):
        assert api.status("GET", AUDIT, who, params=params) == status


def test_each_event_of_a_job_has_its_actor(api: Server) -> None:
    agent = running_agent(api)
    api.done("PATCH", f"{JOBS}/job?updateMask=labels", json={"labels": {"a": "b"}})
    api.cancel()
    agent.sync()
    agent.stopped("master-replica-0")
    events = [(event["kind"], event["after"], event["actor"]) for event in api.detail()["events"]]
    assert {actor for _, _, actor in events} == {"admin", "trainyard", "agent laptop"}
    assert {
        ("created", "", "admin"),
        ("labels", "", "admin"),
        ("job", "PREPARING", "trainyard"),
        ("replica", "RUNNING", "agent laptop"),
        ("job", "CANCELLING", "admin"),
        ("job", "CANCELLED", "trainyard"),
    } <= set(events)
