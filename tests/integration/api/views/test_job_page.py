"""Overview page of a job, as HTML."""

import json
import re
from pathlib import Path
from typing import Any

from integration.api.api_support import VERA, Clock, ScriptedAgent, Server, running_agent, server
from trainyard_protocol.wire.logs import LogChunk, LogLine

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


def test_names_in_the_reason_of_a_waiting_job_keep_their_letters(api: Server) -> None:
    ScriptedAgent(api, "n1-Box-T4", cpus=1).sync()
    api.create("first")
    api.create("job")
    api.tick()
    assert "Needs 1 vCPU and 2.0 GB; agent n1-Box-T4 has 1 vCPU, of which 0 are free" in overview(api)


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


def test_origin_is_on_the_page_with_its_diff_and_what_to_do_with_it(api: Server) -> None:
    running_agent(api, "good").exit()
    api.tick()
    api.create("other", pythonModule="other.task")
    api.create("job")
    git = {"commit": "3f2a1c9" + "0" * 33, "branch": "<main>", "dirty": True, "changed": ["a.py"], "diff": "+1"}
    origin = {"git": git, "rerun_of": "good"}
    api.done("PUT", f"/trainyard/v1{JOB}/origin", json=origin)
    text = overview(api)
    commands = ("trainyard jobs rerun job --project p", "trainyard jobs diff good job --project p")
    for shown in ("Origin 3f2a1c9 (&lt;main&gt;, dirty, 1 file)", "Rerun of good", *commands):
        assert shown in text
    page = api.client.get(JOB, headers=VERA).text
    (link,) = set(re.findall(r'href="([^"]*/origin/diff)"', page))
    assert api.client.get(link, headers=VERA).text == "+1"
    assert "jobs diff" not in api.client.get("/projects/p/jobs/other", headers=VERA).text
