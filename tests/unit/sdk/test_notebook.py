"""Jobs in a notebook: what a program wrote is text, and nothing runs; a table with a row for each job."""

import math
from datetime import UTC, datetime
from typing import Any

from trainyard import frame
from trainyard.notebook import html
from trainyard_protocol.answers.jobs import JobDetail, ReplicaView, RunView
from trainyard_protocol.answers.metrics import CurveDigest, MetricsDigest
from trainyard_protocol.states import JobState, ReplicaState, RunState

BAD = "<script>alert(1)</script>\"'&"


def detail(state: JobState, name: str = "loss", error: str = "") -> JobDetail:
    curve = CurveDigest(name=name, step=4, value=0.25, points=((0, 1.0), (2, float("nan")), (3, 0.5)))
    replica = ReplicaView(
        task="master-replica-0", state=ReplicaState.RUNNING, machine_type="local-1", step=4, steps=1000,
        metrics=MetricsDigest(main=name, metrics=(curve,)),
    )  # fmt: skip
    run = RunView(
        run_id="r", number=1, state=RunState.RUNNING, agent="a", created_at="2026-11-22T10:00:00Z", replicas=(replica,)
    )
    return JobDetail(job={"jobId": "digits", "errorMessage": error}, state=state, runs=(run,))


def test_job_shows_its_state_its_step_and_the_finite_points_of_its_main_curve() -> None:
    shown = html(detail(JobState.RUNNING), "http://yard/projects/p/jobs/digits")
    assert '<a href="http://yard/projects/p/jobs/digits"><b>digits</b></a>' in shown
    assert ">RUNNING</span>, step 4 of 1,000</p>" in shown
    assert '<polyline points="4.0,4.0 358.0,78.7 476.0,116.0"' in shown
    assert "<p>loss 0.25</p>" in shown


def test_text_of_programs_is_escaped() -> None:
    shown = html(detail(JobState.FAILED, BAD, BAD), BAD)
    assert "<script" not in shown
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in shown


def test_jobs_have_one_row_each_and_columns_have_one_type() -> None:
    created = "2026-11-20T12:00:00Z"
    jobs: list[dict[str, Any]] = [
        {
            "jobId": "b",
            "state": "SUCCEEDED",
            "owner": "ana",
            "createTime": created,
            "startTime": created,
            "endTime": created,
            "duration": 7,
            "params": {"lr": "1e-2", "epochs": "5", "seed": "none", "pad": "007"},
            "metrics": {"loss": 0.5, "norm": "NaN"},
            "labels": {"team": "vision"},
        },
        {"jobId": "a", "state": "QUEUED", "owner": "bo", "createTime": created, "params": {"lr": "1", "seed": "4"}},
    ]
    table = frame.columns(jobs)
    at, norms = datetime(2026, 11, 20, 12, tzinfo=UTC), list(table.pop("metrics.norm"))
    assert math.isnan(norms[0])  # type: ignore[arg-type]
    assert norms[1] is None
    assert {name: list(values) for name, values in table.items()} == {
        "job_id": ["b", "a"], "state": ["SUCCEEDED", "QUEUED"], "owner": ["ana", "bo"], "created": [at, at],
        "started": [at, None], "ended": [at, None], "duration_s": [7, None], "params.lr": [0.01, 1],
        "params.epochs": [5, None], "params.seed": ["none", "4"], "params.pad": [7, None], "metrics.loss": [0.5, None],
        "labels.team": ["vision", None],
    }  # fmt: skip
