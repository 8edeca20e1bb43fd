"""Jobs from their creation to their end, with an agent that does what the test says."""

from pathlib import Path
from typing import Any

import pytest

from beds.databases import on_every_database
from integration.api.api_support import ADMIN, WITH_GPU, Clock, ScriptedAgent, Server, line, running_agent, server
from trainyard_cli.output.jobs.job_texts import summary
from trainyard_protocol.answers.jobs import JobDetail
from trainyard_protocol.states import Reason, ReplicaState
from trainyard_protocol.wire.logs import LogChunk, LogEnd, digest

PAIR: dict[str, Any] = {"workerType": "local-1", "workerCount": 1}


def started(api: Server, agent: ScriptedAgent, job_id: str = "job", **training_input: Any) -> None:
    api.create(job_id, **training_input)
    agent.begin()
    assert api.job(job_id)["state"] == "RUNNING"


@pytest.fixture
def pair(api: Server) -> tuple[ScriptedAgent, ScriptedAgent]:
    """Two agents, so there is a lease. The first gets a job that fits both."""
    first, second = ScriptedAgent(api, "first"), ScriptedAgent(api, "second", cpus=4)
    for agent in (first, second, first):
        agent.sync()
    assert first.response.lease_s == 600.0
    return first, second


def lose(api: Server, second: ScriptedAgent) -> None:
    """The lease of the first agent runs out, and the second gets the job."""
    second.turn(599)
    assert api.job()["state"] == "RUNNING"
    api.tick(2)
    detail = api.detail()
    assert (detail["state"], detail["runs"][0]["replicas"][0]["reason"]) == ("QUEUED", "HOST_LOST")
    second.sync()
    assert second.begin(1).number == 2


def damage(api: Server, job_id: str = "job") -> list[str]:
    return [event["message"] for event in api.detail(job_id)["events"] if event["kind"] == "log-damaged"]


def test_job_with_a_primary_that_exits_zero_succeeds(api: Server, agent: ScriptedAgent) -> None:
    started(api, agent)
    agent.log("hello")
    agent.exit()
    job = api.job()
    assert job["state"] == "SUCCEEDED"
    assert "errorMessage" not in job
    assert {"createTime", "startTime", "endTime"} < job.keys()
    assert api.events() == [
        "Validating job requirements...",
        "Job creation request has been successfully validated.",
        "Job job is queued.",
        "Waiting for job to be provisioned.",
        "Waiting for training program to start.",
        "All replicas are running.",
        "The replica master 0 completed.",
        "Job completed successfully.",
    ]
    assert api.detail()["exit_code"] == 0
    assert agent.sync().runs == ()


def test_what_is_prepared_for_a_run_is_told_once_as_it_goes_on(api: Server, agent: ScriptedAgent) -> None:
    api.create()
    agent.turn()
    for activity in ("pulling a:1", "pulling a:1", "pulling a:1: 50 % of 8 MB", ""):
        agent.activity = activity
        agent.sync()
    agent.start()
    assert api.events()[4:] == [
        "Waiting for training program to start.",
        "Pulling a:1.",
        "Pulling a:1: 50 % of 8 MB.",
        "All replicas are running.",
    ]


def test_program_error_fails_the_job_and_names_the_replica(api: Server, agent: ScriptedAgent) -> None:
    started(api, agent, **PAIR)
    agent.log("Traceback (most recent call last):", "ValueError: no", task="worker-replica-0")
    agent.exit("worker-replica-0", code=3)
    agent.stopped("master-replica-0")
    job, detail = api.job(), api.detail()
    assert job["state"] == "FAILED"
    assert job["errorMessage"] == (
        "The replica worker 0 exited with a non-zero status of 3. ValueError: no\n"
        "Traceback (most recent call last):\nValueError: no\n\n"
        "To find out more about why your job exited please check the logs: `trainyard jobs stream-logs job`"
    )
    assert detail["exit_code"] == 3
    assert detail["verdict"]["replica"] == "worker-replica-0"
    assert (detail["verdict"]["cause"], detail["verdict"]["message"].split(". ")[-1]) == ("ValueError: no",) * 2
    page = api.get("/trainyard/v1/projects/p/jobs/job/logs/page", before=detail["verdict"]["cause_cursor"] + 1, limit=1)
    assert page["lines"][0][7] == "ValueError: no"
    assert detail["verdict"]["last_lines"] == ["Traceback (most recent call last):", "ValueError: no"]
    assert len(detail["runs"]) == 1
    assert api.events()[-1] == "Job failed."


def test_killed_replica_gets_new_runs_with_backoff_until_the_budget_is_spent(tmp_path: Path, clock: Clock) -> None:
    with server(tmp_path, clock, retries=2, backoff_first_s=4) as api:
        agent = ScriptedAgent(api)
        agent.sync()
        started(api, agent)
        for pause in (4, 8):
            agent.exit(code=137, reason=Reason.KILLED_BY_SIGNAL)
            agent.turn(pause - 1)
            assert api.job()["state"] == "QUEUED"
            agent.turn(1)
            assert api.job()["state"] == "PREPARING"
            agent.start()
        agent.exit(code=137, reason=Reason.KILLED_BY_SIGNAL)
        assert api.job()["state"] == "FAILED"
        killed = "The replica master 0 was killed by signal 9 (SIGKILL)."
        assert api.job()["errorMessage"].partition("\n")[0] == killed
        assert [run["number"] for run in api.detail()["runs"]] == [1, 2, 3]
        assert api.detail()["exit_code"] == 137
        assert "A new run starts in 4 s (retry 1 of 2)." in api.events()


def test_run_that_gets_further_than_those_before_gives_its_job_the_whole_budget_again(
    tmp_path: Path, clock: Clock
) -> None:
    kinds = {"checkpoint": '{"event": "checkpoint", "step": %d}', "step": '{"event": "progress", "step": %d}'}
    for kind, report in kinds.items():
        with server(tmp_path / kind, clock, retries=2, backoff_first_s=4) as api:
            agent = ScriptedAgent(api)
            agent.sync()
            started(api, agent)
            pauses = []
            for reached in (100, 100, 150, 150, 120, 130):  # from the last checkpoint on
                agent.log(report % reached)
                agent.exit(code=137, reason=Reason.KILLED_BY_SIGNAL)
                if api.job()["state"] == "FAILED":
                    break
                pauses += [pause for pause in (4, 8) if f"A new run starts in {pause} s" in api.events()[-1]]
                agent.begin(10)
            assert api.job()["state"] == "FAILED", kind
            assert pauses == [4, 8, 4, 8], kind
            assert [run["number"] for run in api.detail()["runs"]] == [1, 2, 3, 4, 5], kind
            anew = "(retry 1 of 2, counted from 0 again: this run got further than the runs before it)."
            assert sum(event.endswith(anew) for event in api.events()) == 1, kind


def test_clock_that_is_set_makes_no_agent_silent_and_loses_no_run(api: Server, agent: ScriptedAgent) -> None:
    ScriptedAgent(api, "other").sync()  # so there is a lease
    started(api, agent)
    for jump in (3600, -7200, 3600):
        api.clock.jump(jump)
        api.tick(1)
    assert api.detail()["runs"][0]["replicas"][0]["state"] == "RUNNING"
    assert len(api.detail()["runs"]) == 1


@on_every_database
def test_lost_agent_that_is_back_sends_what_its_runs_wrote_while_their_job_goes_on(
    api: Server, pair: tuple[ScriptedAgent, ScriptedAgent]
) -> None:
    first, second = pair
    started(api, first)
    run = first.run
    first.log("heard")
    lose(api, second)
    (order,) = first.sync().runs
    assert (order.run_id, order.target) == (run.run_id, "stop")
    first.log("written", "in silence")
    first.end_log(run=run)
    assert first.sync().runs == ()
    lines = [data["text"] for data in api.log() if data["task"] == order.replicas[0].task]
    assert lines == ["heard", "written", "in silence"]
    complete = "The log of master-replica-0 is complete: its agent is back, and has sent its end."
    assert api.events().count(complete) == 1
    second.exit()
    assert api.job()["state"] == "SUCCEEDED"


def test_report_of_an_exit_without_a_status_is_a_vanished_replica(api: Server, agent: ScriptedAgent) -> None:
    assert agent.response.lease_s is None, "the only agent has no lease"
    started(api, agent)
    agent._set(agent.run, "master-replica-0", state=ReplicaState.EXITED)
    agent.sync()
    assert api.detail()["runs"][0]["replicas"][0]["reason"] == "VANISHED"


def test_log_that_differs_from_the_agents_is_closed_and_said(api: Server, agent: ScriptedAgent) -> None:
    started(api, agent)
    agent.log("one")
    agent.exit(logs=False)
    chunk = LogChunk(start=1, end=LogEnd(count=1, sha256="0" * 64))
    receipt = agent.ship("master-replica-0", chunk, agent.run)
    assert (receipt.next, receipt.complete) == (1, True)
    assert api.job()["state"] == "SUCCEEDED"
    assert ["is not what the replica wrote" in message for message in damage(api)] == [True]


def test_log_that_lacks_lines_is_complete_and_says_how_many(api: Server, agent: ScriptedAgent) -> None:
    expected = {
        0: [],
        1: ["The log of master-replica-0 lacks 1 line, which its machine has lost."],
        1000: ["The log of master-replica-0 lacks 1000 lines, which its machine has lost."],
        None: ["The log of master-replica-0 may lack its last lines: what stored them was killed or removed."],
    }
    for number, (missing, messages) in enumerate(expected.items()):
        job_id = f"job_{number}"
        started(api, agent, job_id)
        end = LogEnd(count=1, sha256=digest([line("one")]), missing=missing)
        agent.ship("master-replica-0", LogChunk.of(0, (line("one"),), end=end), agent.run)
        agent.exit(logs=False)
        assert (api.job(job_id)["state"], damage(api, job_id)) == ("SUCCEEDED", messages)


def test_job_that_asked_for_gpus_and_runs_without_is_warned_of_in_all_places(api: Server) -> None:
    agent = ScriptedAgent(api, mode="fit")
    agent.sync()
    api.create(**WITH_GPU)
    agent.turn()
    warning = (
        "master-replica-0 asked for 1 x NVIDIA_TESLA_T4, but agent laptop has no GPU for it: CPUs do all the work."
    )
    assert warning in api.events()
    answer = api.client.get("/trainyard/v1/projects/p/jobs/job", headers=ADMIN)
    assert f"WARNING: {warning}" in summary(JobDetail.model_validate_json(answer.content), api.clock())
    assert warning in api.client.get("/projects/p/jobs/job", headers=ADMIN).text


def test_explanation_of_what_never_ran_is_refused(api: Server, agent: ScriptedAgent) -> None:
    api.create()
    path = "/trainyard/v1/projects/p/jobs/job/explain"
    assert api.refusal("GET", path, 400)["status"] == "FAILED_PRECONDITION"
    api.tick()
    table = {"task=worker-replica-9": 404, "task=nonsense": 400, "run=2": 404}
    assert {asked: api.status("GET", f"{path}?{asked}") for asked in table} == table


def test_decision_that_died_before_it_was_applied_is_taken_by_the_next_tick(tmp_path: Path, clock: Clock) -> None:
    with server(tmp_path, clock) as api:
        agent = running_agent(api)
        agent.log("one")
        api.use_cases.controller.advance = lambda key: None  # type: ignore[method-assign]
        agent.exit(code=3)  # why is looked for in its log, in a transaction of its own
        assert api.job()["state"] == "RUNNING"
    with server(tmp_path, clock) as api:
        api.tick()
        assert api.job()["state"] == "FAILED"


def test_server_that_was_away_gives_its_agents_time_to_come_back(tmp_path: Path, clock: Clock) -> None:
    with server(tmp_path, clock) as api:
        running_agent(api)
    clock.advance(3000)
    with server(tmp_path, clock) as api:
        api.tick()
        assert api.detail()["runs"][0]["replicas"][0]["state"] == "RUNNING"
        api.tick(31)
        assert api.detail()["runs"][0]["replicas"][0]["state"] == "UNKNOWN"
