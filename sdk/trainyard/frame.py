"""Jobs as a table: one row for each job, columns for its parameters, metrics and labels."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from trainyard_protocol.job.parameters import number_of

_TIMES = {"created": "createTime", "started": "startTime", "ended": "endTime"}


def columns(jobs: Sequence[Mapping[str, Any]]) -> dict[str, Sequence[object]]:
    """The columns of a table of jobs as the server lists them with their results. None stands for no value."""
    return {
        "job_id": [job["jobId"] for job in jobs],
        "state": [job["state"] for job in jobs],
        "owner": [job.get("owner") for job in jobs],
        **{
            name: [datetime.fromisoformat(time) if (time := job.get(field)) else None for job in jobs]
            for name, field in _TIMES.items()
        },
        "duration_s": [job.get("duration") for job in jobs],
        **{f"params.{name}": _numbers(texts) for name, texts in _inner(jobs, "params")},
        **{  # JSON has no NaN and no infinity, which are texts
            f"metrics.{name}": [None if value is None else float(value) for value in values]
            for name, values in _inner(jobs, "metrics")
        },
        **{f"labels.{name}": texts for name, texts in _inner(jobs, "labels")},
    }


def _inner(jobs: Sequence[Mapping[str, Any]], field: str) -> list[tuple[str, list[Any]]]:
    """Each name in a mapping of the jobs, with its value in every job, in the order in which the names appear."""
    mappings = [job.get(field) or {} for job in jobs]
    names = dict.fromkeys(name for mapping in mappings for name in mapping)
    return [(name, [mapping.get(name) for mapping in mappings]) for name in names]


def _numbers(texts: Sequence[str | None]) -> Sequence[object]:
    """The texts as numbers if each of them is one, so that a column has one type."""
    numbers = [None if text is None else number_of(text) for text in texts]
    if any(number is None and text is not None for number, text in zip(numbers, texts, strict=True)):
        return texts
    return [
        int(text) if text is not None and text.isdecimal() else number
        for number, text in zip(numbers, texts, strict=True)
    ]
