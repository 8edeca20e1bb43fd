from typing import Any

from trainyard_cli.output.jobs.active_jobs import ActiveJobs, headline, page, rows, wide_rows
from trainyard_protocol.states import JobState
from trainyard_protocol.views.views import ActiveJobsView, ActiveJobView
from unit.cli.terminal import NOON, after

GB = 10**9


def job(state: JobState = JobState.RUNNING, **changes: Any) -> ActiveJobView:
    given = {"project": "p", "job_id": "digits", "created_at": NOON}
    return ActiveJobView(**(given | {"state": state} | changes))


RUNNING = job(
    run=1, agent="vm", replicas=2, running=2, cpus=2, cpu_used=1.84, memory_bytes=8 * GB, memory_used_bytes=GB,
    started_at=NOON, first_step=0, step=10, steps=50, step_at=after(10), metric="loss", value=0.3119,
)  # fmt: skip
QUEUED = job(JobState.QUEUED, job_id="next", position=3, waiting="needs 4 vCPU", project="other")


def view(*jobs: ActiveJobView, at: float = 12, **changes: Any) -> ActiveJobsView:
    given: dict[str, Any] = {"counts": {JobState.RUNNING: 1, JobState.QUEUED: 1}, "agents": 1, "now": after(at)}
    return ActiveJobsView(**(given | {"jobs": jobs} | changes))


def test_table_has_what_each_job_does() -> None:
    assert wide_rows(ActiveJobs("p").lines(view(RUNNING, QUEUED))) == [
        "JOB         STATE    STEP   METRIC      SPEED        LEFT  CPU    MEMORY GB  AGENT  DOES",
        "digits      RUNNING  10/50  loss 0.312  1.0 steps/s  0:40  1.8/2  1.0/8      vm",
        "other/next  QUEUED                                                                  #3: needs 4 vCPU",
    ]


def test_table_that_is_too_wide_has_two_rows_for_each_job() -> None:
    long = RUNNING.model_copy(update={"job_id": f"digits_{'x' * 40}_1"})
    shown = rows(ActiveJobs("p").lines(view(long, QUEUED)), 60)
    assert shown == [
        "JOB            STATE    STEP   METRIC      SPEED        LEFT",
        "digits…xxxx_1  RUNNING  10/50  loss 0.312  1.0 steps/s  0:40",
        "  CPU 1.8/2  memory 1.0/8 GB  on vm",
        "other/next     QUEUED",
        "  #3: needs 4 vCPU",
    ]


def test_speed_is_that_of_the_last_lists_and_the_time_left_stands_still_without_a_step() -> None:
    jobs = ActiveJobs("p")
    seen = []
    for at in (10, 20, 30, 31, 90):
        step = RUNNING.model_copy(update={"step": min(at, 30), "step_at": after(min(at, 30))})
        (line,) = jobs.lines(view(step, at=at))
        seen.append((line.speed, line.left, line.does))
    assert seen == [
        ("1.0 steps/s", "0:40", ""),
        ("1.0 steps/s", "0:30", ""),
        ("1.0 steps/s", "0:20", ""),
        ("1.0 steps/s", "0:20", ""),
        ("1.0 steps/s", "", "no step for 60 s"),
    ]
    (line,) = jobs.lines(view(RUNNING.model_copy(update={"run": 2, "step": None, "step_at": None})))
    assert (line.step, line.speed, line.does) == ("", "", "run 2; 2 of 2 replicas running")


def test_activities_of_other_jobs() -> None:
    cases = {
        "installing x": job(JobState.PREPARING, replicas=1, activity="installing x"),
        "0 of 2 replicas running": job(JobState.PREPARING, replicas=2),
        "stalled": RUNNING.model_copy(update={"attention": "stalled"}),
        "its agent is silent": RUNNING.model_copy(update={"attention": "silent"}),
        "run 2; not considered yet": job(JobState.QUEUED, run=2),
        "ab": job(JobState.QUEUED, waiting="a\x1b[2Jb").model_copy(update={"position": 0}),
    }
    assert [line.does for line in ActiveJobs("p").lines(view(*cases.values()))] == list(cases)


def test_page_fits_the_terminal() -> None:
    listed = view(*(RUNNING.model_copy(update={"job_id": f"job_{n}"}) for n in range(30)))
    for height in (5, 24):
        shown = page(listed, ActiveJobs("p").lines(listed), 80, height)
        assert len(shown) == height
        assert max(map(len, shown)) <= 80
        assert shown[-1].startswith("... and more")
    empty = view(counts={}, agents=0)
    assert page(empty, [], 80, 24, "The server does not answer.") == [
        f"{headline(empty)}  q quits",
        "The server does not answer.",
    ]
    assert headline(empty).endswith("no active job  no agent is alive")
