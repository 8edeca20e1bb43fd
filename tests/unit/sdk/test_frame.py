"""Table of jobs of the Python client: a row for each job, whatever it has."""

import math
from datetime import UTC, datetime
from typing import Any

from trainyard import frame


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
        "job_id": ["b", "a"],
        "state": ["SUCCEEDED", "QUEUED"],
        "owner": ["ana", "bo"],
        "created": [at, at],
        "started": [at, None],
        "ended": [at, None],
        "duration_s": [7, None],
        "params.lr": [0.01, 1],
        "params.epochs": [5, None],
        "params.seed": ["none", "4"],
        "params.pad": [7, None],
        "metrics.loss": [0.5, None],
        "labels.team": ["vision", None],
    }
