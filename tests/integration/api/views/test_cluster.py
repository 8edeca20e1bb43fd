"""The machines and the queue, as the dashboard reads them."""

from pathlib import Path

from beds.databases import on_every_database
from integration.api.api_support import GB, KEY, Clock, ScriptedAgent, Server, running_agent, server
from trainyard_protocol.states import JobState
from trainyard_protocol.views.views import ActiveJobsView
from trainyard_protocol.wire.sync import RunReport, SyncRequest
from trainyard_server.services.views.cluster import QUEUE_PAGE, ClusterView


def page_of(api: Server, page: int = 1) -> ClusterView:
    return api.use_cases.cluster.page(None, page)


@on_every_database
def test_queue_stands_in_the_order_of_the_scheduler(api: Server) -> None:
    for job_id, priority in (("low", 0), ("high", 9), ("middle", 5)):
        api.create(job_id, scheduling={"priority": priority})
    assert [job.position for job in page_of(api).queue] == [0, 0, 0], "not looked at yet: as they came"
    assert [job.job_id for job in page_of(api).queue] == ["low", "high", "middle"]
    api.tick()
    lines = page_of(api).queue
    found = [(job.position, job.job_id, job.priority) for job in lines]
    assert found == [(1, "high", 9), (2, "middle", 5), (3, "low", 0)]
    assert all(job.needs == "1 vCPU and 2.0 GB" for job in lines)
    assert all("no agent" in job.waiting.lower() for job in lines)


@on_every_database
def test_queue_has_pages_and_one_beyond_the_last_is_the_last(api: Server) -> None:
    for number in range(QUEUE_PAGE + 2):
        api.create(f"job_{number}")
    api.tick()
    first, second = page_of(api, 1), page_of(api, 2)
    assert (len(first.queue), len(second.queue), first.pages, first.waiting) == (QUEUE_PAGE, 2, 2, QUEUE_PAGE + 2)
    assert [job.key for job in page_of(api, 77).queue] == [job.key for job in second.queue]
    assert page_of(api, -3).page == 1


@on_every_database
def test_job_that_starts_moves_from_the_queue_to_its_agent(api: Server) -> None:
    running_agent(api, workerType="local-1", workerCount="1")
    cluster = page_of(api)
    assert cluster.queue == []
    (line,) = cluster.agents
    (run,) = line.runs
    assert (run.job_id, run.replicas, run.up, run.cpus, run.cpu_used) == ("job", 2, 2, 2, None)
    assert line.view.cpus_given == 2
    assert cluster.counts[JobState.RUNNING] == 1
    assert cluster.quotas == []


@on_every_database
def test_what_is_left_of_a_run_that_is_over_is_told(api: Server) -> None:
    """Its agent still has it: its CPUs are not free."""
    agent = running_agent(api)
    run, before = agent.run, agent.reports()
    agent.exit()
    api.tick()
    late = SyncRequest(agent=agent.info, runs=(RunReport(run_id=run.run_id, replicas=before[0].replicas),))
    api.use_cases.agent_sync.record(late, KEY)
    (line,) = page_of(api).agents
    (held,) = line.runs
    assert (held.orphaned, held.job_id) == (True, "job")
    assert line.view.runs == 0
    assert line.view.cpus_given == 1


def test_cpus_that_replicas_share_count_once_and_quotas_are_told_of_who_has_some(tmp_path: Path) -> None:
    quotas = tmp_path / "quotas.yaml"
    quotas.write_text("default: {runningJobs: 4}\nprojects: {named: {vcpus: 8}}")
    with server(tmp_path / "data", Clock(), quotas=quotas) as api:
        agent = ScriptedAgent(api, cpus=1, mode="fit")
        api.create(workerType="local-1", workerCount="3")
        agent.sync()
        api.tick()
        (line,) = page_of(api).agents
        assert (line.view.cpus_given, line.runs[0].cpus, line.runs[0].replicas) == (1, 1, 4)
        (status,) = api.get("/trainyard/v1/status")["agents"]
        assert status["cpus_given"] == 1
        lines = {line.project: line.amounts for line in page_of(api).quotas}
    assert lines == {"named": [("jobs", 0, 4), ("vcpus", 0, 8)], "p": [("jobs", 1, 4)]}


@on_every_database
def test_active_jobs_have_what_they_do_and_then_comes_the_queue(api: Server) -> None:
    agent = running_agent(api, "first")
    agent.log('{"event": "progress", "step": 3, "steps": 9, "epoch": 1, "loss": 0.5}')
    api.use_cases.backend.progress.flush()
    agent.use(cpu=1.5, memory_bytes=GB)
    api.create("second", masterType="n1-standard-16")
    api.create("ended")
    api.cancel("ended")
    api.tick()
    view = ActiveJobsView.model_validate(api.get("/trainyard/v1/jobs:active"))
    first, second = view.jobs
    assert (first.job_id, first.state, first.agent) == ("first", JobState.RUNNING, "laptop")
    assert (first.running, first.replicas) == (1, 1)
    assert (first.first_step, first.step, first.steps, first.epoch) == (3, 3, 9, 1)
    assert (first.metric, first.value, first.cpu_used, first.memory_used_bytes) == ("loss", 0.5, 1.5, GB)
    assert first.step_at is not None
    assert first.started_at is not None
    assert (second.job_id, second.position, second.run, second.agent) == ("second", 1, None, "")
    assert "needs 16 vCPU" in second.waiting
    assert (view.counts, view.agents) == ({JobState.RUNNING: 1, JobState.QUEUED: 1}, 1)
