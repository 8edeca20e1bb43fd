"""Partial responses by the parameter `fields`."""

from typing import Any

import pytest

from trainyard_protocol.errors import InvalidArgument
from trainyard_protocol.net.field_mask import apply, parse

JOB = {"jobId": "a", "trainingInput": {"scaleTier": "BASIC", "args": ["1"]}, "labels": {"a_b": "c", "d": "e"}}
LIST = {"jobs": [JOB, {"jobId": "b"}], "nextPageToken": "x"}


def test_mask_selects() -> None:
    both: list[Any] = [{"jobId": "a"}, {"jobId": "b"}]
    table: dict[str, Any] = {
        "jobs/jobId": {"jobs": both},
        "jobs(job_id), nextPageToken": {"jobs": both, "nextPageToken": "x"},
        "jobs(trainingInput/scaleTier)": {"jobs": [{"trainingInput": {"scaleTier": "BASIC"}}, {}]},
        "jobs.trainingInput.args,jobs.jobId": {
            "jobs": [{"jobId": "a", "trainingInput": {"args": ["1"]}}, {"jobId": "b"}]
        },
        "jobs(jobId,labels/d),jobs/labels": {"jobs": [{"jobId": "a", "labels": JOB["labels"]}, {"jobId": "b"}]},
        "nextPageToken,nextPageToken/x": {"nextPageToken": "x"},
        "jobs,jobs/jobId": {"jobs": LIST["jobs"]},
        "jobs/labels/a_b": {"jobs": [{"labels": {"a_b": "c"}}, {}]},
        "*(jobId)": {"jobs": both, "nextPageToken": "x"},
        "*": LIST,
        "nothing": {},
    }
    assert {text: apply(parse(text), LIST) for text in table} == table


def test_what_is_no_mask_is_refused() -> None:
    table = {
        "jobs(": "the name of a field is expected in place of its end",
        "jobs(jobId": "a closing parenthesis is missing",
        "a,,b": "the name of a field is expected in place of ','",
        "a)": "')' does not belong there",
        "a b": "'b' does not belong there",
        "a;b": "';' is no part of a name",
        "x" * 2001: "it may have 2000 characters",
        "(".join("a" * 30): "it may have 20 levels",
        "/".join("a" * 30): "it may have 20 levels",
    }
    for text, why in table.items():
        with pytest.raises(InvalidArgument, match="Field: fields Error: ") as caught:
            parse(text)
        assert why in caught.value.message, text
