"""The list of jobs over all projects, as the dashboard asks for it."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from beds import databases
from integration.api.api_support import ADMIN, ALICE, BOB, Clock, ScriptedAgent, Server, package_job, server
from trainyard_protocol.errors import InvalidArgument
from trainyard_protocol.states import JobState
from trainyard_protocol.wire.sync import Stall
from trainyard_server.services.views.job_search import JobSearchRequest
from trainyard_server.storage.db.queries import job_queries, reader

pytestmark = databases.on_every_database


@pytest.fixture
def jobs(api: Server) -> Server:
    return with_jobs(api)


@pytest.fixture(scope="module")
def shared() -> Iterator[tuple[dict[str, Server], ExitStack]]:
    with ExitStack() as stack:
        yield {}, stack


@pytest.fixture
def seen(
    shared: tuple[dict[str, Server], ExitStack],
    request: pytest.FixtureRequest,
    every_database: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Server:
    """The same jobs for every test that only looks at them: one server on each database."""
    servers, stack = shared
    if every_database not in servers:
        real = request.getfixturevalue("postgresql") if every_database == "postgresql" else None
        own, directory = databases.PerDirectory(real), tmp_path_factory.mktemp("seen")
        stack.callback(own.close)
        running = stack.enter_context(server(directory, Clock(), database=own.url(directory)))
        servers[every_database] = with_jobs(running)
    return servers[every_database]


def with_jobs(api: Server) -> Server:
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
        body = {"jobId": name, "trainingInput": package_job(), "labels": labels}
        answer = api.client.post(f"/v1/projects/{project}/jobs", json=body, headers=who)
        assert answer.status_code == 200, answer.text
        api.clock.advance(60)
    for code in (0, 1):
        api.tick()
        agent.sync()
        agent.start()
        agent.log('{"event": "progress", "step": 7, "steps": 9, "loss": 0.5}')
        agent.exit(code=code)
    api.use_cases.backend.progress.flush()
    return api


def names(server: Server, **asked: Any) -> list[str]:
    return [line.job_id for line in server.use_cases.job_search.find(None, JobSearchRequest(**asked)).jobs]


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
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
    ],
)
def test_list_has_what_was_asked_for_in_its_order(
    seen: Server, asked: dict[str, Any], expected: list[str]
) -> None:
    assert names(seen, **asked) == expected


def test_names_sort_whatever_their_case(seen: Server) -> None:
    listed = names(seen, order="name", text="digits")
    assert listed == ["Digits_1", "digits_2", "digits_3"]


def test_every_state_is_counted_whatever_state_is_shown(seen: Server) -> None:
    listing = seen.use_cases.job_search.find(
        None, JobSearchRequest(states=("FAILED",), labels=("team=vision",))
    )
    waits = {
        state: count
        for state, count in listing.counts.items()
        if state not in (JobState.SUCCEEDED, JobState.FAILED)
    }
    assert (listing.counts[JobState.SUCCEEDED], listing.counts[JobState.FAILED], sum(waits.values())) == (
        1,
        1,
        1,
    )
    assert (listing.total, listing.more) == (1, False)


def test_line_has_steps_and_metrics_of_the_newest_run(seen: Server) -> None:
    (line,) = seen.use_cases.job_search.find(None, JobSearchRequest(states=("SUCCEEDED",))).jobs
    assert (line.run, line.step, line.steps) == (1, 7, 9)
    curve = line.metrics.curve()
    assert curve is not None
    assert (curve.name, curve.value, line.shape[0]) == ("loss", 0.5, "CUSTOM")


def test_choices_are_those_that_there_are(seen: Server) -> None:
    projects, owners = seen.use_cases.job_search.choices(None)
    assert (list(projects), list(owners)) == (["p", "q"], ["admin", "alice", "bob"])


def test_trouble_is_what_failed_lately_and_what_stands_still(jobs: Server) -> None:
    assert names(jobs, attention=True) == ["digits_2"]
    agent = ScriptedAgent(jobs, "second", cpus=1)
    agent.sync()
    jobs.tick()
    agent.sync()
    agent.start()
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


def test_pages_have_every_job_once(jobs: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainyard_server.services.views.job_search.PAGE_SIZE", 4)
    for asked in ({}, {"text": "i"}, {"labels": ("team",)}):
        first, second = names(jobs, page=1, **asked), names(jobs, page=2, **asked)
        monkeypatch.setattr("trainyard_server.services.views.job_search.PAGE_SIZE", 50)
        assert first + second == names(jobs, **asked)
        monkeypatch.setattr("trainyard_server.services.views.job_search.PAGE_SIZE", 4)


def test_more_than_are_counted_are_still_found(jobs: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_queries, "COUNTED", 2)
    listing = jobs.use_cases.job_search.find(None, JobSearchRequest(text="digits"))
    assert [line.job_id for line in listing.jobs] == ["digits_3", "digits_2", "Digits_1"]
    assert listing.more


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"order": "colour"}, "'colour' is not an order; orders are created, name"),
        ({"states": ("RUNING",)}, "'RUNING' is not a state; states are QUEUED"),
        ({"page": 0}, "counts from 1; this is 0"),
        ({"since": "yesterday"}, "must be a time such as 2026-11-20 or"),
    ],
)
def test_question_that_cannot_be_understood_says_what_can(
    api: Server, asked: dict[str, Any], expected: str
) -> None:
    with pytest.raises(InvalidArgument) as refused:
        api.use_cases.job_search.find(None, JobSearchRequest(**asked))
    assert expected in str(refused.value)


def test_labels_that_were_changed_are_found(jobs: Server) -> None:
    answer = jobs.client.patch(
        "/v1/projects/p/jobs/nightly",
        params={"updateMask": "labels"},
        json={"labels": {"team": "ops"}},
        headers=ADMIN,
    )
    assert answer.status_code == 200
    assert names(jobs, labels=("team=ops",)) == ["nightly"]


def test_label_that_many_jobs_have_finds_the_same(jobs: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for labels in (("team=vision",), ("stage",), ("stage", "team=vision")):
        rare = names(jobs, labels=labels)
        with monkeypatch.context() as many:
            many.setattr(reader, "_MANY", 2)
            assert names(jobs, labels=labels) == rare
