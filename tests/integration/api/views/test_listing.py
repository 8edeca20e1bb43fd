"""The list of jobs over all projects, as the dashboard asks for it."""

import re
from typing import Any

import pytest

from beds import databases
from integration.api.api_support import ADMIN, ALICE, BOB, ScriptedAgent, Server
from trainyard_protocol.errors import InvalidArgument
from trainyard_protocol.wire.observations import Stall
from trainyard_server.services.views.job_search import JobSearchRequest
from trainyard_server.storage.db.queries import job_queries, reader

pytestmark = databases.on_every_database


@pytest.fixture
def jobs(api: Server) -> Server:
    """Six jobs of three people in two projects, a minute apart; the first has succeeded, the second failed."""
    agent = ScriptedAgent(api, cpus=1)
    agent.sync()
    for name, project, who, labels in (
        ("Digits_1", "p", ALICE, {"team": "vision", "stage": "final"}),
        ("digits_2", "p", ALICE, {"team": "vision"}),
        ("bert_100", "q", BOB, {"team": "language"}),
        ("bert1000", "q", BOB, {"team": "language", "stage": "try"}),
        ("nightly", "p", ADMIN, {}),
        ("digits_3", "p", BOB, {"team": "vision"}),
    ):
        api.create(name, who=who, project=project, labels=labels)
        api.clock.advance(60)
    for code in (0, 1):
        agent.begin()
        agent.log('{"event": "progress", "step": 7, "steps": 9, "loss": 0.5}')
        agent.exit(code=code)
    api.use_cases.backend.progress.flush()
    return api


def names(api: Server, **asked: Any) -> list[str]:
    return [line.job_id for line in api.use_cases.job_search.find(None, JobSearchRequest(**asked)).jobs]


def test_list_has_what_was_asked_for_in_its_order(jobs: Server) -> None:
    table: list[tuple[dict[str, Any], list[str]]] = [
        ({}, ["digits_3", "nightly", "bert1000", "bert_100", "digits_2", "Digits_1"]),
        ({"order": "created"}, ["Digits_1", "digits_2", "bert_100", "bert1000", "nightly", "digits_3"]),
        ({"text": "DIGITS"}, ["digits_3", "digits_2", "Digits_1"]),
        ({"text": "t_100"}, ["bert_100"]),
        ({"text": "%"}, []),
        ({"project": "q"}, ["bert1000", "bert_100"]),
        ({"owner": "bob"}, ["digits_3", "bert1000", "bert_100"]),
        ({"owner": "bob", "project": "p"}, ["digits_3"]),
        ({"labels": ("team=vision",)}, ["digits_3", "digits_2", "Digits_1"]),
        ({"labels": ("stage",)}, ["bert1000", "Digits_1"]),
        ({"labels": ("stage", "team=vision")}, ["Digits_1"]),
        ({"labels": ("team=vision",), "states": ("succeeded", "FAILED")}, ["digits_2", "Digits_1"]),
        ({"states": ("SUCCEEDED",)}, ["Digits_1"]),
        ({"since": "150s"}, ["digits_3", "nightly"]),
        ({"since": "2026-11-20T12:03:00Z", "until": "2026-11-20T12:04:00"}, ["nightly", "bert1000"]),
        ({"order": "-ended"}, ["digits_2", "Digits_1"]),
        ({"text": "digits", "order": "ended"}, ["Digits_1", "digits_2"]),
        ({"order": "owner", "project": "p"}, ["nightly", "Digits_1", "digits_2", "digits_3"]),
        ({"order": "name", "text": "digits"}, ["Digits_1", "digits_2", "digits_3"]),
    ]
    assert [(asked, names(jobs, **asked)) for asked, _ in table] == table
    projects, owners = jobs.use_cases.job_search.choices(None)
    assert (list(projects), list(owners)) == (["p", "q"], ["admin", "alice", "bob"])


def test_trouble_is_what_failed_lately_and_what_stands_still(jobs: Server) -> None:
    assert names(jobs, attention=True) == ["digits_2"]
    agent = ScriptedAgent(jobs, "second", cpus=1)
    agent.sync()
    agent.begin()
    with jobs.use_cases.backend.store.write() as writer:
        run = writer.run(agent.run.run_id)
        assert run is not None
        stall = Stall(step=1, since=jobs.clock(), limit_s=1)
        writer.record_stall(run, "master-replica-0", stall, "")
    stalled = agent.run.job_id
    listing = jobs.use_cases.job_search.find(None, JobSearchRequest(attention=True))
    assert {line.job_id: line.attention for line in listing.jobs} == {stalled: "stalled", "digits_2": ""}
    assert listing.attention_count == 2
    jobs.clock.advance(25 * 3600)
    assert names(jobs, attention=True) == [stalled]


def test_pages_have_every_job_once_and_more_than_are_counted(jobs: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for asked in ({}, {"text": "i"}, {"labels": ("team",)}):
        whole = names(jobs, **asked)
        with monkeypatch.context() as small:
            small.setattr("trainyard_server.services.views.job_search.PAGE_SIZE", 4)
            assert names(jobs, page=1, **asked) + names(jobs, page=2, **asked) == whole
    monkeypatch.setattr(job_queries, "COUNTED", 2)
    listing = jobs.use_cases.job_search.find(None, JobSearchRequest(text="digits"))
    assert [line.job_id for line in listing.jobs] == ["digits_3", "digits_2", "Digits_1"]
    assert listing.more


def test_question_that_cannot_be_understood_says_what_can(api: Server) -> None:
    table: dict[str, dict[str, Any]] = {
        "'colour' is not an order; orders are created, name": {"order": "colour"},
        "'RUNING' is not a state; states are QUEUED": {"states": ("RUNING",)},
        "counts from 1; this is 0": {"page": 0},
        "must be a time such as 2026-11-20 or": {"since": "yesterday"},
    }
    for says, asked in table.items():
        with pytest.raises(InvalidArgument, match=re.escape(says)):
            api.use_cases.job_search.find(None, JobSearchRequest(**asked))


def test_labels_that_were_changed_or_that_many_jobs_have_are_found(
    jobs: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs.done("PATCH", "/v1/projects/p/jobs/nightly?updateMask=labels", json={"labels": {"team": "ops"}})
    assert names(jobs, labels=("team=ops",)) == ["nightly"]
    for labels in (("team=vision",), ("stage",), ("stage", "team=vision")):
        rare = names(jobs, labels=labels)
        with monkeypatch.context() as many:
            many.setattr(reader, "_MANY", 2)
            assert names(jobs, labels=labels) == rare
