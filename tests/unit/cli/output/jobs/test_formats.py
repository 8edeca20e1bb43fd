from dataclasses import replace

import click
import pytest

from trainyard_cli.output.jobs import formats

JOBS = [
    {"jobId": "a", "state": "RUNNING", "createTime": "2026-11-20T23:30:00Z",
     "trainingInput": {"workerCount": "2", "args": ["--x", "1"], "jobDir": "gs://b/out/"}},
    {"jobId": "b,c", "state": "FAILED", "labels": {"team": "vision"}},
]  # fmt: skip


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
        ("get(jobId)", "a\nb,c"),
        ('value[separator=" "](jobId,state.lower())', "a running\nb,c failed"),
        ("value[separator=','](jobId,state)", "a,RUNNING\nb,c,FAILED"),
        ('table[title="a, (b)",no-heading](jobId)', "a\nb,c"),
        ('value(createTime.date("%b %d, %Y", tz=UTC))', "Nov 20, 2026\n"),
        ("value(createTime.date(%Y-%m-%d))", "2026-11-20\n"),
        ("value(createTime.date('%H:%M', tz=UTC),trainingInput.args.join(/))", "23:30\t--x/1\n\t"),
        ("value(trainingInput.args.len(),trainingInput.jobDir.basename())", "2\tout\n0\t"),
        ("table[box,no-heading](jobId:sort=1)", "a\nb,c"),
        ("yaml(jobId,trainingInput.workerCount)", "---\njobId: a\ntrainingInput:\n  workerCount: '2'\n---\njobId: b,c"),
        ("none", ""),
        ("table(jobId,state:label=STATUS)", "JOB_ID  STATUS\na       RUNNING\nb,c     FAILED"),
    ],
)
def test_format_expression_prints_the_keys_of_each_job(expression: str, text: str) -> None:
    assert formats.render(formats.parse(expression), JOBS) == text


def test_flatten_makes_a_row_of_each_item_and_keeps_what_has_no_list() -> None:
    trials = [{"id": "1", "steps": [5, 6]}, {"id": "2", "steps": []}, {"id": "3"}]
    jobs = [{"jobId": "a", "output": {"trials": trials}}, {"jobId": "b"}]
    output = formats.parse("value[separator=|](jobId,output.trials.id,output.trials.steps)")
    for keys, text in (
        ("output.trials[]", "a|1|[5, 6]\na|2|\na|3|\nb||"),
        ("output.trials[].steps", "a|1|5\na|1|6\na|3|\nb||"),
        ("output.trials, output.trials.steps[]", "a|1|5\na|1|6\na|3|\nb||"),
    ):
        assert formats.render(replace(output, flatten=formats.flatten_keys(keys)), jobs) == text
    with pytest.raises(click.UsageError, match="is not a key"):
        formats.flatten_keys("[]")


@pytest.mark.parametrize("expression", ["", "xml", "list", "value()", "value(a", "table(a,,b)", "value(a b)", "json()",
                                        "value(a.exec())", "value[shell](a)", "value[terminator=' '](a)"])  # fmt: skip
def test_format_expression_that_is_none_is_a_usage_error(expression: str) -> None:
    says = r"is unknown; use json, yaml, value\(KEY,...\), csv\(KEY,...\) or table\(KEY,...\), where"
    with pytest.raises(click.UsageError, match=says):
        formats.parse(expression)


def test_table_without_rows_and_headers_is_empty() -> None:
    assert formats.table([], []) == ""
