"""Decision rounds of the controller: what they read and write is what has changed, and servers agree."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from beds import databases
from beds.databases import on_postgresql
from beds.statements import statements
from benchmarks.filled import agent_info
from trainyard_server.config.settings import Settings
from trainyard_server.domain.access.agent_keys import AgentKey
from trainyard_server.domain.access.permissions import Caller, Role
from trainyard_server.domain.scheduling.scheduler import Plan
from trainyard_server.storage.db.base import revisions
from trainyard_server.use_cases import UseCases

KEY = AgentKey("0" * 64)
BOSS = Caller.everywhere(Role.ADMIN, "admin")
NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)


def server(directory: Path) -> UseCases:
    database = databases.current.url(directory)
    settings = Settings(data_dir=directory, database=database, run_loops=False, durable=False, queued_jobs=0)
    return UseCases(settings, clock=lambda: NOW, stopwatch=lambda: 0.0)


@pytest.fixture
def api(tmp_path: Path) -> Iterator[UseCases]:
    use_cases = server(tmp_path)
    yield use_cases
    use_cases.backend.store.close()


def join(api: UseCases, agents: int) -> None:
    with api.backend.store.write() as writer:
        for number in range(agents):
            writer.save_agent(agent_info(f"a{number}", 1, 4 * 10**9), KEY.digest, (), NOW)


def submit(api: UseCases, *job_ids: str) -> None:
    training_input = {"scaleTier": "CUSTOM", "masterType": "local-1", "pythonModule": "prog.task"}
    for job_id in job_ids:
        api.jobs.create(BOSS, "p", {"jobId": job_id, "trainingInput": training_input})


def states(api: UseCases) -> dict[str, str]:
    return {job["jobId"]: job["state"] for job in api.job_lists.page("p", page_size=100).get("jobs", ())}


@pytest.mark.parametrize(("agents", "jobs"), [(1, 3), (12, 30)])
def test_round_without_changes_asks_the_database_nothing(api: UseCases, agents: int, jobs: int) -> None:
    join(api, agents)
    submit(api, *(f"job{number}" for number in range(jobs)))
    for _ in range(3):
        api.controller.tick()
    with statements(api.backend.store) as seen:
        api.controller.tick()
    assert list(seen) == []


@on_postgresql
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


@on_postgresql
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
        broken.setattr(revisions, "changed_agents" if reads == "everything" else "known_changes", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            api.controller.tick()
    api.controller.tick()
    assert states(api) == {"first": "PREPARING", "second": "QUEUED"}


def test_round_after_a_commit_that_failed_reads_everything_anew(api: UseCases) -> None:
    """A job that was cancelled past the memory, which may be wrong then, is not planned again."""
    join(api, 1)
    submit(api, "gone", "next")
    api.controller.tick()
    submit(api, "late")
    store = api.backend.store
    with store._engine.begin() as connection:
        connection.exec_driver_sql("UPDATE jobs SET state = 'CANCELLED' WHERE job_id = 'next'")
    store._is_unsure = True
    api.jobs.cancel(BOSS, "p", "late")
    api.controller.tick()
    assert sorted(job.job_id for job in api.controller._workload.jobs.values()) == ["gone"]
