"""Configs: checked without a job, and shown as they were sent and resolved."""

from pathlib import Path
from typing import Any

import pytest

from integration.api.api_support import ADMIN, Clock, ScriptedAgent, Server, server
from trainyard_protocol.job.config import text as config_text
from trainyard_server.capabilities.config_editor import configs
from trainyard_server.capabilities.config_editor.configs import Configs

CHECK = "/trainyard/v1/projects/p/configs:check"
GOOD = """\
trainingInput:
  scaleTier: CUSTOM
  masterType: local-1
  pythonModule: trainer.task
"""


def check(api: Server, config: str = GOOD, **given: Any) -> dict[str, Any]:
    problems: dict[str, Any] = api.done("POST", CHECK, json={"config": config, "jobId": "job"} | given)
    return problems


def errors(answer: dict[str, Any]) -> list[tuple[Any, Any, str]]:
    assert not answer["ok"]
    return [(p["line"], p["column"], p["message"]) for p in answer["problems"] if p["severity"] == "error"]


MISTAKES = [
    ("trainingInput:\n  scaleTeir: BASIC\n", 2, 3, 'Did you mean "scaleTier"?'),
    ("trainingInput:\n  workerCount: two\n", 2, 16, "workerCount: must be a whole number"),
    ("trainingInput:\n  args: [a, {b: 1}]\n", 2, 13, "args[1]: must be a string; this is a mapping."),
    ("trainingInput:\n  args: --lr\n", 2, 9, "args: must be a list"),
    ("trainingInput:\n  scaleTier: BIG\n", 2, 14, "must be one of BASIC"),
    ("trainingInput: 3\n", 1, 16, "must be a mapping"),
    ("scaleTier: BASIC\n", 1, 1, "`scaleTier` stands at the top level: indent it below `trainingInput:`"),
    (
        "trainingInput:\nscaleTier: BASIC\n",
        2,
        1,
        "`scaleTier` stands at the top level: indent it below `trainingInput:`",
    ),
    ("trainingInput:\n  runtimeVersion: 2.10\n", 2, 19, "put it in quotes"),
    ("trainingInput:\n  scaleTier: BASIC\n", 1, 1, "pythonModule: is required"),
    (GOOD + "  workerCount: 2\n", 1, 1, "workerType: is required when worker_count is set"),
    (GOOD.replace("local-1", "local-99"), 3, 15, "is not a machine type of this service"),
    (GOOD + "  packageUris: ['http://x/a.tar.gz']\n", 5, 17, "must start with gs://"),
    (GOOD + "labels: {Team: x}\n", 5, 1, "has the key 'Team'"),
    (GOOD + "labels:\n  trainyard_stall_action: shout\n", 6, 27, "must be"),
    (GOOD + "  masterConfig: {acceleratorConfig: {type: K80, count: 1}}\n", 5, 44, "cannot be attached"),
    ("trainingInput:\n\tscaleTier: BASIC\n", 2, 1, "has a tab"),
    ("trainingInput: {\n  scaleTier: BASIC\n", 3, 1, "is not YAML"),
    ("a: 1\na: 2\n", 2, 1, "is given twice"),
    ('{"trainingInput": {"workerCount": true}}', 1, 35, "must be a whole number"),
    ("", None, None, "is empty"),
]


def test_check_mistake_has_its_line_and_column(api: Server) -> None:
    wrong = []
    for config, line, column, expected in MISTAKES:
        problems = errors(check(api, config))
        if (line, column) not in [(at, to) for at, to, message in problems if expected in message]:
            wrong.append((config, problems))
    assert wrong == []


def test_check_good_config_says_what_would_be_created_and_creates_nothing(api: Server) -> None:
    answer = check(api, GOOD, args="--lr 0.1 'a b'", labels={"team": "x"}, jobDir="/out")
    assert answer["ok"]
    assert answer["problems"] == []
    assert answer["job"]["jobId"] == "job"
    assert answer["job"]["labels"] == {"team": "x"}
    assert answer["job"]["trainingInput"]["args"] == ["--lr", "0.1", "a b"]
    assert answer["job"]["trainingInput"]["jobDir"] == "/out"
    (group,) = answer["gang"]
    assert (group["task"], group["count"], group["machine_type"]) == ("master-replica-0", 1, "local-1")
    assert api.get("/v1/projects/p/jobs") == {}
    created = api.client.post("/v1/projects/p/jobs", json=answer["job"], headers=ADMIN)
    assert created.status_code == 200


def test_check_what_is_given_beside_replaces_the_text_with_a_warning(api: Server) -> None:
    text = GOOD + "  args: [--old]\n  job_dir: /old\nlabels: {a: b}\njobId: other\n"
    answer = check(api, text, args=["--new"], jobDir="/new", labels={"c": "d"})
    assert answer["ok"]
    assert answer["job"]["trainingInput"]["args"] == ["--new"]
    assert answer["job"]["labels"] == {"c": "d"}
    assert {(p["line"], p["severity"]) for p in answer["problems"]} == {(line, "warning") for line in (5, 6, 7, 8)}


def test_check_what_is_wrong_beside_the_text_has_a_source_and_no_line(api: Server) -> None:
    never = "staging://" + "0" * 64 + "/a.tar.gz"
    table: tuple[tuple[dict[str, Any], str, str], ...] = (
        ({"jobId": "1x"}, "job_id", "should start with a letter"),
        ({"jobId": ""}, "job_id", "is required"),
        ({"args": "--name 'x"}, "args", "no closing quotation"),
        ({"args": "a " * (40 * 2**10)}, "args", "The arguments are longer than 64 KiB"),
        ({"labels": {"Team": "x"}}, "labels", "has the key 'Team'"),
        ({"packageUris": ["ftp://x"]}, "packages", "must start with gs://"),
        ({"packageUris": [never]}, "packages", "never uploaded"),
        ({"jobDir": "gs://"}, "job_dir", "names no bucket"),
    )
    for given, source, expected in table:
        answer = check(api, GOOD, **given)
        (problem,) = answer["problems"]
        assert (answer["ok"], problem["source"], problem["line"]) == (False, source, None), problem
        assert expected in problem["message"]
    (problem,) = api.done("POST", CHECK.replace("/p/", "/-p/"), json={"config": GOOD, "jobId": "j"})["problems"]
    assert problem["source"] == "project"


def test_check_text_that_is_too_much_is_refused(api: Server) -> None:
    laughs = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    laughs += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    table = {
        "larger than 64 KiB": "#" * (64 * 2**10 + 1),
        "has more than": "\n".join(laughs),
        "nested too deeply": "a: " + "[" * 5000,
    }
    for says, text in table.items():
        assert says in check(api, text)["problems"][0]["message"]


def test_check_says_whether_it_would_start_here_now(api: Server) -> None:
    assert "no agent has connected" in check(api)["outlook"]["summary"]
    agent = ScriptedAgent(api, cpus=1)
    agent.sync()
    image = "trainingInput:\n  masterConfig:\n    imageUri: a/b:1\n"
    assert check(api, image)["problems"][0]["line"] == 3, "no agent can run it"
    now = check(api)["outlook"]
    assert (now["starts"], now["summary"]) == (True, "It would start now, on agent laptop.")
    api.create("first")
    agent.turn()
    then = check(api)["outlook"]
    assert not then["starts"]
    assert "of which 0 are free" in then["summary"]
    assert then["agents"][0]["lacks"].startswith("lacks 1 vCPU")


def test_check_more_than_the_quota_is_a_problem_of_no_line(tmp_path: Path) -> None:
    quotas = tmp_path / "quotas.yaml"
    quotas.write_text("default: {vcpus: 1}\n")
    with server(tmp_path / "data", Clock(), quotas=quotas) as limited:
        (problem,) = check(limited, GOOD.replace("local-1", "n1-standard-8"))["problems"]
        assert (problem["line"], "exceeds the allowed maximum" in problem["message"]) == (None, True)


def test_check_while_too_many_are_checked_is_to_be_asked_again(api: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(configs, "_TIMEOUT_S", 0.01)
    turns = api.use_cases.of(Configs)._turns
    for _ in range(configs._CONCURRENT):
        turns.acquire()
    assert api.refusal("POST", CHECK, 503, json={"config": GOOD, "jobId": "j"})["status"] == "UNAVAILABLE"
    turns.release()
    assert check(api)["ok"]
    assert not check(api, "a: [")["ok"]
    assert check(api)["ok"]


def test_config_as_sent_and_as_resolved(api: Server) -> None:
    api.create("job", scaleTier="STANDARD_1", masterType="", args=["--lr", 0.1], jobDir="gs://b/job")
    config = api.get("/trainyard/v1/projects/p/jobs/job/config")
    assert config["sent"]["trainingInput"] == api.job()["trainingInput"]
    assert config["resolved"]["trainingInput"]["scheduling"]["maxRunningTime"] == "604800s"
    assert [group["task_type"] for group in config["gang"]] == ["master", "worker", "ps"]
    assert (config["primary"], config["args"], config["job_dir"]) == ("chief", ["--lr", "0.1"], "gs://b/job")
    assert (config["clone"]["job_id"], config["clone"]["job_dir"]) == ("job_2", "gs://b/job_2")
    resolved = config_text.read(config["resolved_text"]).data
    assert resolved == config["resolved"]
    lines = config["resolved_text"].splitlines()
    filled = [lines[number - 1].strip() for number in config["filled_lines"]]
    assert any(line.startswith("workerCount:") for line in filled)
    assert not any(line.startswith("pythonModule:") for line in filled)
