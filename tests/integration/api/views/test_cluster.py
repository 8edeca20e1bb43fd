"""The machines and the queue, as the dashboard reads them."""

import json
import re
from pathlib import Path
from typing import Any

from beds.databases import on_every_database
from integration.api.api_support import GB, VERA, Clock, ScriptedAgent, Server, running_agent, server
from trainyard_protocol.answers.cluster import ActiveJobsView
from trainyard_protocol.states import JobState
from trainyard_protocol.wire.logs import LogChunk, LogLine
from trainyard_server.services.views.cluster import QUEUE_PAGE, ClusterView


def page_of(api: Server, page: int = 1) -> ClusterView:
    return api.use_cases.cluster.page(None, page)


@on_every_database
def test_queue_has_pages_and_one_beyond_the_last_is_the_last(api: Server) -> None:
    for number in range(QUEUE_PAGE + 2):
        api.create(f"job_{number}")
    api.tick()
    first, second = page_of(api, 1), page_of(api, 2)
    assert (len(first.queue), len(second.queue), first.pages, first.waiting) == (QUEUE_PAGE, 2, 2, QUEUE_PAGE + 2)
    assert [job.key for job in page_of(api, 77).queue] == [job.key for job in second.queue]
    assert page_of(api, -3).page == 1


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


JOB = "/projects/p/jobs/job"


def overview(api: Server) -> str:
    """The text of the page, without markup."""
    page = api.client.get(JOB, headers=VERA)
    assert page.status_code == 200, page.text
    return " ".join(re.sub(r"<[^>]+>", " ", page.text).split())


def report(api: Server, agent: ScriptedAgent, *events: dict[str, Any]) -> None:
    time = api.clock().isoformat()
    lines = tuple(LogLine(time=time, stream="stdout", text=json.dumps(event)) for event in events)
    agent.ship("master-replica-0", LogChunk.of(0, lines), agent.run)
    api.use_cases.backend.progress.flush()


def test_time_left_does_not_count_down_while_no_step_comes(api: Server) -> None:
    agent = running_agent(api)
    api.clock.advance(60)
    report(api, agent, *({"event": "progress", "step": step, "steps": 30} for step in (0, 10)))
    assert "about 2m 00s left" in overview(api)
    api.clock.advance(90)
    agent.sync()
    assert "2m 00s left" in overview(api)


def test_page_of_a_job_that_succeeded_begins_with_its_curve_and_has_its_model_and_program(tmp_path: Path) -> None:
    job_dir = tmp_path / "job"
    (job_dir / "model").mkdir(parents=True)
    with server(tmp_path / "server", Clock(), job_dir_roots=(str(tmp_path),), one_user=True) as api:
        agent = running_agent(api, "job", args=["--note", "two words"], jobDir=str(job_dir))
        agent.report_steps(loss=[3.0, 0.5, 0.75], rate=[7, 7, 7])
        agent.exit()
        page = api.client.get(JOB, headers=VERA).text
        assert '<path class="curve series-1"' in page
        assert f'<a href="{JOB}/files?path=model">{job_dir}/model</a>' in page
        text = overview(api)
    assert "Curve loss 0.75 at step 3 Best 0.5 at step 2" in text
    assert "loss 0.75 0.5 rate 7" in text  # last and best
    assert "Arguments --note &#39;two words&#39;" in text
    assert "Module trainer.task" in text
