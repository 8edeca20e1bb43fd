"""`trainyard channels` and `usage`, and several owners in `jobs list`."""

import json
from pathlib import Path

from beds.services.receivers import http_receiver
from integration.shells import OPERATOR, Shell


def test_channel_is_set_from_standard_input_listed_and_deleted(shell: Shell) -> None:
    shell.out(f"login {shell.url} --token-file -", OPERATOR)
    code, _, err = shell("channels set team", "https://hooks.slack.com/services/secret\n")
    assert (code, "it gets failure and stall of all jobs" in err, "services/secret" in err) == (0, True, False)
    assert shell("channels set ana ana@example.com --by-name")[0] == 0
    rows = json.loads(shell.out("channels list --format json"))
    assert [(row["name"], row["transport"], row["address"], row["events"]) for row in rows] == [
        ("ana", "mail", "ana@example.com", []),
        ("team", "slack", "https://hooks.slack.com/...", ["failure", "stall"]),
    ]
    assert "exclude each other" in shell("channels set x a@b.c --by-name --on end")[2]
    with http_receiver() as receiver:
        assert shell(f"channels set local {receiver.url}")[0] == 0
        code, _, err = shell("channels test local")
    assert (code, "where webhooks do not go" in err) == (1, True), err
    assert shell.out("channels signing-key").startswith("whsec_")
    assert shell("channels delete team ana local")[0] == 0
    assert "has no channels" in shell("channels list")[2]
    assert "No notifications" in shell("channels history")[2]


def test_jobs_of_several_owners_have_a_column_and_usage_counts_them(shell: Shell, tmp_path: Path) -> None:
    shell.out(f"login {shell.url} --token-file -", OPERATOR)
    config = tmp_path / "config.yaml"
    config.write_text("trainingInput:\n  pythonModule: trainer.task\n")
    assert shell(f"jobs submit training one --config {config} --band batch")[0] == 0
    assert "OWNER" not in shell.out("jobs list")
    shell.out("projects add-member ana --role submitter")
    secret = json.loads(shell.out("tokens create --for ana --format json"))["secret"]
    shell.out(f"login {shell.url} --token-file -", secret)
    code, _, err = shell(f"jobs submit training two --config {config} --band production")
    assert (code, "--band: production is for those with the role admin" in err) == (1, True), err
    assert shell(f"jobs submit training two --config {config}")[0] == 0
    lines = [line.split() for line in shell.out("jobs list").splitlines()]
    assert lines[0] == ["JOB_ID", "STATUS", "CREATED", "OWNER"]
    assert {line[-1] for line in lines[1:]} == {"admin", "ana"}
    assert "No runs from" in shell("usage --by user --by month")[2]
    assert shell.out("usage --csv").splitlines()[0].startswith("project,runs,failed_runs,cpu_hours")
    assert "is project, user, month or label:NAME" in shell("usage --by owner")[2]
