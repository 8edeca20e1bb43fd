import json

import click
import pytest
import yaml

from trainyard_cli.output import formats
from trainyard_cli.output.formats import Output

JOBS = [
    {"jobId": "a", "state": "RUNNING", "trainingInput": {"workerCount": "2", "args": ["--x", "1"]}},
    {"jobId": "b,c", "state": "FAILED", "labels": {"team": "vision"}},
]


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("value(jobId,state)", "a\tRUNNING\nb,c\tFAILED"),
        ("value(trainingInput.workerCount)", "2\n"),
        ("value(trainingInput.args[1])", "1\n"),
        ("value(trainingInput.args)", "--x;1\n"),
        ("value( labels.team , nothing.here )", "\t\nvision\t"),
        ("csv(jobId,trainingInput.workerCount)", 'job_id,worker_count\na,2\n"b,c",'),
        ("csv[no-heading](jobId)", 'a\n"b,c"'),
        ("table(jobId,state:label=STATUS)", "JOB_ID  STATUS\na       RUNNING\nb,c     FAILED"),
    ],
)
def test_format_expression_prints_the_keys_of_each_job(expression: str, text: str) -> None:
    assert formats.render(formats.parse(expression), JOBS) == text


def test_format_value_of_one_resource_is_one_line() -> None:
    assert formats.render(formats.parse("value(jobId)"), JOBS[0]) == "a"


@pytest.mark.parametrize(
    "expression", ["", "xml", "value()", "value(a", "table(a,,b)", "value(a b)", "json(a)"]
)
def test_format_expression_that_is_none_is_a_usage_error(expression: str) -> None:
    with pytest.raises(click.UsageError, match="is unknown"):
        formats.parse(expression)


def test_render_json_and_yaml_give_the_data_back() -> None:
    assert json.loads(formats.render(Output("json"), JOBS)) == JOBS
    assert list(yaml.safe_load_all(formats.render(Output("yaml"), JOBS))) == JOBS


def test_render_yaml_quotes_times_so_that_they_stay_strings() -> None:
    job = {"createTime": "2026-11-20T12:00:00Z"}
    assert yaml.safe_load(formats.render(Output("text"), job)) == job


def test_table_without_rows_and_headers_is_empty() -> None:
    assert formats.table([], []) == ""
