"""Submissions that wait at the same time share a transaction, and are one by one as if each had its own."""

import threading
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
from sqlalchemy import event

from beds.databases import on_every_database
from integration.api.api_support import ALICE, BOB, Clock, Server, eventually, package_job, server
from trainyard_server.storage.db.tables import audit

JOBS = "/v1/projects/p/jobs"


def together(api: Server, *calls: tuple[str, dict[str, str], dict[str, Any]]) -> list[httpx.Response]:
    """Submit while the transaction of the first call is held up, so that the others share the next one."""
    answers: dict[int, httpx.Response] = {}

    def submit(number: int) -> None:
        job_id, who, changes = calls[number]
        body = {"jobId": job_id, "trainingInput": package_job(**changes), "labels": {"of": job_id}}
        answers[number] = api.client.post(JOBS, json=body, headers=who)

    threads = [threading.Thread(target=submit, args=(number,), daemon=True) for number in range(len(calls))]
    commits = api.use_cases.jobs._submissions._commits
    write, go_on = commits._write, threading.Event()

    def held(group: Any) -> Any:
        assert go_on.wait(120)
        return write(group)

    commits._write = held
    threads[0].start()
    eventually(lambda: commits._is_led and not commits._waiting, 60)
    for thread in threads[1:]:
        thread.start()
    eventually(lambda: len(commits._waiting) == len(calls) - 1, 60)
    go_on.set()
    for thread in threads:
        thread.join(60)
    return [answers[number] for number in range(len(calls))]


@on_every_database
def test_submissions_that_wait_share_a_transaction_and_each_has_its_own_answer(tmp_path: Path, clock: Clock) -> None:
    with server(tmp_path, clock, queued_jobs=3) as api:
        inserts: list[str] = []

        def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
            inserts.extend([statement] if statement.startswith("INSERT INTO jobs ") else ())

        event.listen(api.use_cases.backend.store._engine, "before_cursor_execute", note)
        absent = {"secrets": [{"name": "absent"}]}
        answers = together(
            api,
            *((f"of_alice_{number}", ALICE, {}) for number in range(4)),
            *[("of_bob", BOB, {})] * 2,
            ("with_a_secret", BOB, absent),
        )
        created = [answer.json()["jobId"] for answer in answers if answer.status_code == 200]
        assert len(inserts) == 2
        assert Counter(answer.status_code for answer in answers) == {200: 4, 429: 1, 409: 1, 400: 1}
        assert "of_bob" in created
        for job in created:
            described = api.detail(job)
            assert described["events"][-1]["message"] == f"Job {job} is queued."
            assert {one["actor"] for one in described["events"]} == {described["owner"]}
            assert described["owner"] in job
            assert api.get(JOBS, filter=f"labels.of={job}")["jobs"][0]["jobId"] == job
        with api.use_cases.backend.store.read() as reader:
            rows = audit.entries(reader, audit.AuditQuery(action="jobs.create"), 100)
        done = [(row.subject, row.actor) for row in rows if row.outcome == "done"]
        assert sorted(done) == sorted((job, api.detail(job)["owner"]) for job in created)
        assert len(rows) == len(answers)
