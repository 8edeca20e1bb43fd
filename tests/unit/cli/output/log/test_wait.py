import threading

import pytest

from trainyard_cli.client import Client
from trainyard_cli.output.log.wait import TIMED_OUT, WaitResult, combined_code, has_reached, is_settled, wait
from trainyard_cli.settings import Server
from trainyard_protocol.answers.jobs import JobDetail, RunView, Verdict
from trainyard_protocol.answers.log_views import LogSummary
from trainyard_protocol.errors import NotFound
from trainyard_protocol.states import JobState, Outcome, Reason
from unit.cli.scripted_server import CUT, Answer, Request, ScriptedServer, events, ok, refused

ENDED = (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED)
VERDICT = Verdict(
    outcome=Outcome.FAILED,
    reason=Reason.PROGRAM_ERROR,
    message="The replica master 0 exited with a non-zero status of 3.",
    replica="master-replica-0",
    exit_code=3,
)


def job(state: JobState, name: str = "j", *, started: bool = False, waiting: str = "") -> JobDetail:
    resource = {"jobId": name, "trainingInput": {}, "createTime": "2026-11-20T12:00:00Z", "state": state.value}
    if started:
        resource["startTime"] = "2026-11-20T12:00:01Z"
    if state in ENDED:
        resource["endTime"] = "2026-11-20T12:01:05Z"
    failed = state is JobState.FAILED
    return JobDetail(
        job=resource, state=state, waiting=waiting, verdict=VERDICT if failed else None, exit_code=3 if failed else None
    )


class Waited:
    def __init__(
        self, script: ScriptedServer, *names: str, target: JobState | None = None, timeout_s: float | None = None
    ) -> None:
        notes: list[str] = []
        with Client(Server(script.url, "t"), "p", sleep=lambda _: None) as client:
            self.result: WaitResult = wait(client, names or ("j",), notes.append, target=target, timeout_s=timeout_s)
        self.code = self.result.code
        self.notes = "\n".join(notes)


def detail(given: JobDetail) -> Answer:
    return ok(given.model_dump(mode="json"))


def states(*given: JobDetail) -> Answer:
    """A stream of states that is cut after the last one, unless that is final."""
    end = [("end", LogSummary(state=given[-1].state, lines={}))] if given[-1].state in ENDED else []
    return events(*(("job", one) for one in given), *end)


def test_wait_follows_states_without_lines_and_gives_the_exit_code(script: ScriptedServer) -> None:
    script.answers = [
        detail(job(JobState.QUEUED, waiting="needs 4 vCPU")),
        states(job(JobState.QUEUED), job(JobState.RUNNING)),
        CUT,
        states(job(JobState.RUNNING), job(JobState.FAILED)),
    ]
    waited = Waited(script)
    assert waited.code == 3
    assert waited.notes.splitlines()[0] == "Waiting for j (QUEUED: needs 4 vCPU)."
    assert "Job [j] is RUNNING." in waited.notes
    assert waited.notes.count("Lost the connection to the server") == 1
    assert "Reconnected to the server." in waited.notes
    assert "Job [j] failed after 01:05.\n  master-replica-0 failed first (PROGRAM_ERROR, exit code 3):" in waited.notes
    assert "  Exit code: 3" in waited.notes
    assert all("lines=false" in request.path for request in script.requests[1:])


def test_wait_for_jobs_that_have_ended_asks_once_for_each_and_gives_the_first_failure(script: ScriptedServer) -> None:
    script.answers = [
        detail(job(JobState.SUCCEEDED, "a")),
        detail(job(JobState.CANCELLED, "b")),
        detail(job(JobState.FAILED, "c")),
    ]
    waited = Waited(script, "a", "b", "c", "a")
    assert waited.code == 1
    assert [request.path.rpartition("/")[2] for request in script.requests] == ["a", "b", "c"]
    assert [one.job["jobId"] for one in waited.result.jobs] == ["a", "b", "c"]


def test_wait_for_a_job_that_is_not_there_fails(script: ScriptedServer) -> None:
    script.answers = [detail(job(JobState.RUNNING)), refused(NotFound("The job p/jobs/x was not found."))]
    with pytest.raises(NotFound, match="was not found"):
        Waited(script, "j", "x")
    script.answers = [detail(job(JobState.RUNNING)), CUT, refused(NotFound("The job j was deleted."))]
    with pytest.raises(NotFound, match="was deleted"):
        Waited(script)


def test_wait_whose_time_is_over_names_the_jobs_that_are_left(script: ScriptedServer) -> None:
    done = threading.Event()

    def silent(_: Request) -> Answer:
        done.wait(10)
        return CUT

    script.answers = [detail(job(JobState.SUCCEEDED, "a")), detail(job(JobState.RUNNING, "b")), silent]
    waited = Waited(script, "a", "b", timeout_s=0.05)
    done.set()
    assert waited.code == TIMED_OUT == 124
    assert waited.notes.endswith(
        "ERROR: Timed out after 0.05 s. Not ended yet: b (RUNNING). It goes on.\n"
        "To wait again:  jobs wait b\n"
        "To end one:     jobs cancel b"
    )


def test_wait_for_a_state_that_can_no_longer_be_reached_fails(script: ScriptedServer) -> None:
    script.answers = [detail(job(JobState.SUCCEEDED))]
    waited = Waited(script, target=JobState.FAILED)
    assert waited.code == 1
    assert waited.notes.endswith("Job [j] succeeded after 01:05.\n  It has ended, so it can no longer be FAILED.")


def test_reached_and_settled_states_are_those_of_the_table() -> None:
    run = RunView(run_id="r", number=1, state="PREPARING", agent="a", created_at="2026-11-20T12:00:00Z")
    retried = job(JobState.QUEUED, started=True).model_copy(update={"runs": (run,)})
    succeeded = job(JobState.SUCCEEDED, started=True).model_copy(update={"runs": (run,)})
    queued, never_ran = job(JobState.QUEUED), job(JobState.CANCELLED)
    table = [  # job, target, reached, settled, exit code
        (retried, JobState.PREPARING, True, True, 0),
        (retried, JobState.RUNNING, True, True, 0),
        (queued, JobState.RUNNING, False, False, None),
        (queued, JobState.SUCCEEDED, False, False, None),
        (succeeded, JobState.RUNNING, True, True, 0),
        (succeeded, JobState.SUCCEEDED, True, True, 0),
        (succeeded, JobState.CANCELLED, False, True, 1),
        (never_ran, JobState.RUNNING, False, True, 1),
        (never_ran, JobState.CANCELLED, True, True, 0),
        (job(JobState.FAILED), JobState.SUCCEEDED, False, True, 3),
    ]
    wrong = [
        (one.state, target)
        for one, target, reached, settled, code in table
        if (has_reached(one, target), is_settled(one, target)) != (reached, settled)
        or (code is not None and combined_code([one], target) != code)
    ]
    assert not wrong
