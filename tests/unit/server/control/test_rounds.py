"""Decision rounds of the controller: what they read and write is what has changed, and servers agree."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event

from beds import databases
from beds.databases import on_every_database
from benchmarks.filled import agent_info
from trainyard_protocol.wire.logs import LogLine
from trainyard_protocol.wire.sync import RunReport, SyncRequest, SyncResponse
from trainyard_server.config.settings import Settings
from trainyard_server.domain.access.agent_keys import AgentKey
from trainyard_server.domain.access.permissions import Caller, Role
from trainyard_server.domain.scheduling.scheduler import Plan
from trainyard_server.storage.db.base import revisions
from trainyard_server.storage.events.notifier import AGENTS_TOPIC, agent_topic
from trainyard_server.storage.logs.job_log import Appended
from trainyard_server.storage.streams import Stream
from trainyard_server.use_cases import UseCases

KEY = AgentKey("0" * 64)
BOSS = Caller.everywhere(Role.ADMIN, "admin")
NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)


def server(directory: Path, run_loops: bool = False, quotas: Path | None = None) -> UseCases:
    """A submission with `run_loops` leaves the service's lines to the next round."""
    return UseCases(
        Settings(
            data_dir=directory,
            database=databases.current.url(directory),
            run_loops=run_loops,
            durable=False,
            queued_jobs=0,
            quotas=quotas,
        ),
        clock=lambda: NOW,
        stopwatch=lambda: 0.0,
    )


@pytest.fixture
def api(tmp_path: Path) -> Iterator[UseCases]:
    use_cases = server(tmp_path)
    yield use_cases
    use_cases.backend.store.close()


def join(api: UseCases, agents: int, cpus: int = 1) -> None:
    with api.backend.store.write() as writer:
        for number in range(agents):
            writer.save_agent(agent_info(f"a{number}", cpus, 4 * cpus * 10**9), KEY.digest, (), NOW)


def submit(api: UseCases, *job_ids: str, **fields: Any) -> None:
    training_input = {"scaleTier": "CUSTOM", "masterType": "local-1", "pythonModule": "prog.task", **fields}
    for job_id in job_ids:
        api.jobs.create(BOSS, "p", {"jobId": job_id, "trainingInput": training_input})


def states(api: UseCases) -> dict[str, str]:
    return {job["jobId"]: job["state"] for job in api.jobs.list("p", page_size=100).get("jobs", ())}


@contextmanager
def statements(api: UseCases) -> Iterator[list[str]]:
    seen: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        seen.append(statement)

    event.listen(api.backend.store._engine, "before_cursor_execute", note)
    try:
        yield seen
    finally:
        event.remove(api.backend.store._engine, "before_cursor_execute", note)


@on_every_database
@pytest.mark.parametrize(("agents", "jobs"), [(1, 3), (12, 30)])
def test_round_without_changes_is_as_many_queries_with_few_jobs_as_with_many(
    api: UseCases, agents: int, jobs: int
) -> None:
    join(api, agents)
    submit(api, *(f"job{number}" for number in range(jobs)))
    for _ in range(3):
        api.controller.tick()
    with statements(api) as seen:
        api.controller.tick()
    reads = [one for one in seen if one.startswith("SELECT")]
    assert len(reads) == 4  # twice: the revision, and the heartbeats of the agents
    assert not any("jobs" in one.split("FROM", 1)[1] for one in reads)
    assert not any(one.startswith(("INSERT", "UPDATE", "DELETE", "BEGIN IMMEDIATE")) for one in seen)


@pytest.mark.parametrize("jobs", [1, 12])
def test_round_that_looks_for_runs_to_preempt_is_as_many_queries_with_few_as_with_many(
    tmp_path: Path, jobs: int
) -> None:
    quotas = tmp_path / "quotas.yaml"
    quotas.write_text("default: {preemptible: true}\npreemption: {minRun: 10m}\n")
    api = server(tmp_path, quotas=quotas)
    join(api, 1, cpus=jobs)
    submit(api, *(f"job{number}" for number in range(jobs)), scheduling={"band": "BATCH"})
    api.controller.tick()
    submit(api, "waits")
    for _ in range(3):
        api.controller.tick()
    assert (states(api).pop("waits"), set(states(api).values())) == ("QUEUED", {"QUEUED", "PREPARING"})
    with statements(api) as seen:
        api.controller.tick()
    reads = [one for one in seen if one.startswith("SELECT")]
    assert len(reads) == 8  # of which two: the runs that are live, and their replicas
    api.backend.store.close()


def test_round_after_a_submission_reads_that_job_alone(api: UseCases, monkeypatch: pytest.MonkeyPatch) -> None:
    join(api, 1)
    submit(api, *(f"job{number}" for number in range(20)))
    for _ in range(3):
        api.controller.tick()
    plans: list[Plan] = []
    update = api.controller._plan.update

    def noted(*given: Any) -> Plan | None:
        if (made := update(*given)) is not None:
            plans.append(made)
        return made

    monkeypatch.setattr(api.controller._plan, "update", noted)
    submit(api, "new")
    with statements(api) as seen:
        api.controller.tick()
    assert [len(made.waiting) for made in plans] == [1]
    assert sum("jobs.changed >" in one for one in seen) == 1
    assert sum(one.startswith("UPDATE jobs SET") for one in seen) == 1  # the reason of that job
    assert len(seen) < 30


def test_first_round_of_new_jobs_writes_each_log_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    api = server(tmp_path, run_loops=True)
    join(api, 1)
    submit(api, "starts", "waits", "waits_too")
    logs = api.backend.logs
    append, written = logs.append, list[tuple[str, int]]()

    def noted(project: str, job_id: str, stream: Stream, start: int, lines: Sequence[LogLine]) -> Appended:
        written.append((job_id, len(lines)))
        return append(project, job_id, stream, start, lines)

    monkeypatch.setattr(logs, "append", noted)
    api.controller.tick()
    # created, validated and queued, and that it is provisioned or what it waits for
    assert sorted(written) == [("starts", 4), ("waits", 4), ("waits_too", 4)]
    api.controller.tick()
    assert len(written) == 3
    api.backend.store.close()


@on_every_database
def test_two_servers_that_plan_at_once_create_one_run_of_each_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = server(tmp_path), server(tmp_path)
    join(one, 2)
    submit(one, "first", "second", "third")
    update = one.controller._plan.update

    def interrupted(*given: Any) -> Plan | None:
        made = update(*given)
        monkeypatch.undo()
        other.controller.tick()  # between the plan of this server and its transaction
        return made

    monkeypatch.setattr(one.controller._plan, "update", interrupted)
    one.controller.tick()
    with one.backend.store.read() as reader:
        runs = reader.live_runs()
        replicas = reader.replicas([run.run_id for run in runs])
    assert sorted(run.agent_id for run in runs) == ["a0", "a1"]
    assert len(replicas) == 2
    assert sorted(states(other).values()) == ["PREPARING", "PREPARING", "QUEUED"]
    for use_cases in (one, other):
        use_cases.backend.store.close()


def test_job_that_changed_since_the_plan_is_planned_again(api: UseCases, monkeypatch: pytest.MonkeyPatch) -> None:
    join(api, 1)
    submit(api, "gone", "next")
    update = api.controller._plan.update

    def interrupted(*given: Any) -> Plan | None:
        made = update(*given)
        if states(api)["gone"] == "QUEUED":
            api.jobs.cancel(BOSS, "p", "gone")
        return made

    monkeypatch.setattr("trainyard_server.control.controller._LONG_S", 1e9)  # no pause after this plan
    monkeypatch.setattr(api.controller._plan, "update", interrupted)
    api.controller.tick()
    assert states(api) == {"gone": "CANCELLED", "next": "PREPARING"}


@on_every_database
def test_change_by_another_server_is_seen_by_the_next_round(tmp_path: Path) -> None:
    one, other = server(tmp_path), server(tmp_path)
    join(one, 1)
    submit(one, "first", "second")
    for _ in range(2):
        one.controller.tick()
    other.jobs.cancel(BOSS, "p", "second")
    other.jobs.delete(BOSS, "p", "second")  # one.controller has never seen it end
    submit(other, "third")
    one.controller.tick()
    workload = one.controller._workload
    assert sorted(job.job_id for job in workload.jobs.values()) == ["first", "third"]
    (third,) = (key for key, job in workload.queue.items())
    assert workload.notes[third].position == 1
    with one.backend.store.read() as reader:
        assert {job.job_id: job.position for job in reader.queued()} == {"third": 1}
    for use_cases in (one, other):
        use_cases.backend.store.close()


@pytest.mark.parametrize("reads", ["everything", "changes"])
def test_round_that_fails_while_it_reads_is_made_up_for_and_gives_no_cpu_twice(
    api: UseCases, monkeypatch: pytest.MonkeyPatch, reads: str
) -> None:
    join(api, 1)
    submit(api, "first")
    if reads == "changes":
        api.controller.tick()
    submit(api, "second")
    with monkeypatch.context() as broken:
        broken.setattr(revisions, "changed_agents", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            api.controller.tick()
    api.controller.tick()
    assert states(api) == {"first": "PREPARING", "second": "QUEUED"}


def test_server_that_plans_and_never_ticks_remembers_unfinished_jobs_alone(api: UseCases) -> None:
    submit(api, "ends", "waits")
    api.controller.schedule()
    api.jobs.cancel(BOSS, "p", "ends")
    api.controller.schedule()
    workload = api.controller._workload
    assert workload._unseen == workload.jobs.keys() == workload.queue.keys()


def test_long_queue_is_noted_in_parts(api: UseCases, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainyard_server.control.controller._NOTES_AT_ONCE", 2)
    submit(api, *(f"job{number}" for number in range(5)))
    noted = []
    for _ in range(4):
        api.controller.tick()
        with api.backend.store.read() as reader:
            noted.append(sum(job.position > 0 for job in reader.queued()))
    assert noted == [2, 4, 5, 5]


def sync(api: UseCases, number: int, runs: tuple[RunReport, ...] = (), version: str = "0") -> SyncResponse:
    info = agent_info(f"a{number}", 1, 4 * 10**9).model_copy(update={"version": version})
    return asyncio.run(api.agent_sync.sync(SyncRequest(agent=info, runs=runs), KEY))


def test_sync_reads_no_agent_but_a_few_and_all_jobs_of_its_runs_at_once(api: UseCases) -> None:
    """One that reads every agent makes a thousand agents a million rows in each hold."""
    join(api, 30)
    sync(api, 1)
    sync(api, 0)
    with statements(api) as idle:
        sync(api, 0)
    assert sum(one.startswith("BEGIN IMMEDIATE") for one in idle) == 1  # its heartbeat
    assert not any("FROM agents" in one and "agents.agent_id" not in one.split("WHERE")[1] for one in idle)
    submit(api, *(f"job{number}" for number in range(30)))
    api.controller.tick()
    with api.backend.store.write() as writer:
        for run in writer.live_runs():
            run.agent_id = "a0"
    with statements(api) as busy:
        assert len(api.agent_sync.answer("a0").runs) == 30
    assert len(busy) < 8


def test_agent_that_changes_wakes_another_only_where_that_was_alone(
    api: UseCases, monkeypatch: pytest.MonkeyPatch
) -> None:
    woken: list[str] = []
    publish = api.backend.notifier.publish

    def noted(*topics: str) -> None:
        woken.extend(topics)
        publish(*topics)

    monkeypatch.setattr(api.backend.notifier, "publish", noted)
    for number in range(2):
        sync(api, number)
    assert agent_topic("a0") in woken[-woken[::-1].index(AGENTS_TOPIC) - 1 :]
    for number in range(2, 5):
        woken.clear()
        sync(api, number)
        sync(api, 0, version=f"{number}")
        assert {one for one in woken if one.startswith("agent:")} == {agent_topic("a0"), agent_topic(f"a{number}")}
