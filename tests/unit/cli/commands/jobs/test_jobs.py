"""The verbs as a user types them, against the real server on a real port."""

import io
import json
import re
import shlex
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import click
import pytest
import yaml
from click.testing import CliRunner

from integration.api.api_support import AGENT, Clock, ScriptedAgent, Server, running_agent, server, serving
from trainyard_cli.commands import tree
from trainyard_cli.commands.jobs.delete import own_directory
from trainyard_cli.commands.service.shell_init import guess_shell
from trainyard_cli.main import run
from trainyard_cli.output.jobs import job_texts
from trainyard_cli.settings import COMPLETION_VARIABLE
from trainyard_protocol.answers.jobs import Explanation, JobDetail
from trainyard_protocol.states import JobState
from unit.cli.commands.images.test_runtimes import ScriptedEngine
from unit.cli.terminal import CommandResult, Terminal, Type, typed_words

CONFIG = """\
trainingInput:
  scaleTier: CUSTOM
  masterType: local-1
  pythonModule: trainer.task
  args: [--lr, 0.1]
labels: {team: vision}
"""


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Server]:
    with server(tmp_path / "server", Clock()) as running:
        yield running


@pytest.fixture
def typed(
    app: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Type]:
    """`typed("jobs list --limit 3")` in a directory with a trainer package and a config."""
    (tmp_path / "work" / "trainer").mkdir(parents=True)
    (tmp_path / "work" / "trainer" / "__init__.py").touch()
    (tmp_path / "work" / "trainer" / "task.py").touch()
    (tmp_path / "work" / "config.yaml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path / "work")

    def type_(words: str, *more: str) -> CommandResult:
        return typed_words(capsys, *words.split(), *more)

    with serving(app.app) as url:
        monkeypatch.setenv("TRAINYARD_SERVER", url)
        monkeypatch.setenv("TRAINYARD_TOKEN", "admin-secret")
        monkeypatch.setenv("TRAINYARD_PROJECT", "p")
        monkeypatch.setenv("TRAINYARD_STATE_DIR", str(tmp_path / "state"))
        yield type_


def staged(app: Server) -> list[Path]:
    """The uploaded packages, without the notes of whose they are."""
    staging = app.use_cases.backend.settings.data_dir / "staging"
    return [path for path in staging.rglob("*") if path.is_file() and staging / "projects" not in path.parents]


def test_submit_prints_id_and_state_on_stdout_and_the_rest_on_stderr(typed: Type, app: Server) -> None:
    printed = typed("jobs submit training first --config config.yaml --region here -- --epochs 5")
    assert (printed.code, printed.out) == (0, "jobId: first\nstate: QUEUED\n")
    assert "Packaging ./trainer, because the config has trainer.task and no packages." in printed.err
    assert re.search(r"Sends \d files? \(\d+ B\) of .*\.\nRuns python -m trainer\.task\.\n", printed.err)
    assert "Job [first] submitted successfully." in printed.err
    assert "jobs describe first" in printed.err
    assert "jobs stream-logs first" in printed.err
    training_input = app.job("first")["trainingInput"]
    (uri,) = training_input.pop("packageUris")
    assert uri.startswith("staging://")
    assert uri.endswith("/trainyard_program-0.0.0-py3-none-any.whl")
    assert training_input == {
        "scaleTier": "CUSTOM",
        "masterType": "local-1",
        "pythonModule": "trainer.task",
        "args": ["--epochs", "5"],
        "region": "here",
    }
    assert app.job("first")["labels"] == {"team": "vision"}


def test_commands_in_messages_have_the_flags_that_select_the_job(typed: Type, app: Server) -> None:
    printed = typed("jobs submit training nightly --project q --config config.yaml")
    assert "$ jobs describe nightly --project q\n" in printed.err
    printed = typed("jobs describe nightly --project q")
    assert printed.err.endswith("jobs stream-logs nightly --project q\n")
    printed = typed("jobs wait nightly --project q --timeout 0s")
    assert printed.err.endswith("jobs cancel nightly --project q\n")


def test_submit_again_is_the_same_job_with_one_upload(
    typed: Type, app: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(CONFIG.encode())))
    printed = typed("jobs submit training first --config -")
    assert (printed.code, printed.out) == (0, "jobId: first\nstate: QUEUED\n")
    assert "Packaging ./trainer" in printed.err
    names = {typed("jobs submit training --config config.yaml --format value(jobId)").out.strip() for _ in range(3)}
    assert len(names) == 3, "a name without a name has the second, and a number"
    assert all(name.startswith("trainer_2") for name in names)
    jobs = [app.job(name) for name in ("first", *names)]
    assert len({json.dumps([job["trainingInput"], job["labels"]]) for job in jobs}) == 1
    assert len(staged(app)) == 1
    nameless = typed("jobs submit training --config config.yaml --if-not-exists")
    assert nameless.code == 2
    assert "argument --if-not-exists: give the job a name, as JOB or as the config's jobId." in nameless.err


def test_submit_if_not_exists_is_the_same_job_or_names_the_differences(typed: Type, app: Server) -> None:
    words = "jobs submit training nightly --config config.yaml --if-not-exists"
    assert "Job [nightly] submitted successfully." in typed(words).err
    created = app.job("nightly")
    again = typed(words)
    assert (again.code, again.out) == (0, "jobId: nightly\nstate: QUEUED\n")
    assert "Job [nightly] exists with the same content: it is QUEUED. Nothing was submitted." in again.err
    described = json.loads(typed(f"{words} -o json").out)
    assert (described["jobId"], described["program"]["command"]) == ("nightly", ["python", "-m", "trainer.task"])
    Path("trainer/task.py").write_text("print('changed')")
    printed = typed(f"{words} -- --lr 0.2")
    assert (printed.code, printed.out) == (1, "")
    for part in (
        "ERROR: The job nightly exists (QUEUED) with other content; nothing was submitted.\n",
        "  args: the job has --lr 0.1; this submission has --lr 0.2\n",
        "  packageUris[0]: the job has trainyard_program-0.0.0-py3-none-any.whl (SHA-256 ",
        "Choose another name for the new content.",
    ):
        assert part in printed.err
    assert app.job("nightly") == created


def test_submit_if_not_exists_by_two_pipelines_at_once_is_one_job(typed: Type, app: Server) -> None:
    typed("jobs list")
    words = "jobs submit training nightly --config config.yaml --packages gs://b/t.whl --if-not-exists"
    with ThreadPoolExecutor(4) as pool:
        codes = list(pool.map(lambda _: run(tree.trainyard, "trainyard", words.split()), range(4)))
    assert codes == [0, 0, 0, 0]
    assert len(app.get("/v1/projects/p/jobs")["jobs"]) == 1


WRONG_CONFIGS = {
    CONFIG.replace("local-1", "local-1\n  workerCount: two"): """\
config.yaml:4: workerCount: must be a whole number; this is the string 'two'.
      workerCount: two
                   ^
""",
    "trainingInput:\n  scaleTier: CUSTOM\n  masterType: local-1\n  masterConfig: {imageUri: img}\n": (
        "config.yaml:4: masterConfig.imageUri: "  # which the server alone refuses
    ),
    **{
        CONFIG.replace("labels:", f"  scheduling:\n    retry:\n    - {rule}\nlabels:"): f"config.yaml:8: {message}"
        for rule, message in {
            "exitCodes: [0]": "scheduling.retry[0].exitCodes[0]: must be an exit code of a failure, from 1 to 255",
            "exitCode: [1]": '"exitCode" is not a field of trainingInput.scheduling.retry[0]. Did you mean "exit',
            "count: 2": "scheduling.retry[0]: must have either exitCodes or log, such as exitCodes: [33].",
            "{log: x, count: 101}": "scheduling.retry[0].count: must be between 1 and 100; this is 101.",
            'log: "(a"': "scheduling.retry[0].log: cannot be used: it is not a regular expression of RE2: missing )",
        }.items()
    },
}
"""Wrong configs, and what is said of each."""


def test_submit_of_a_wrong_config_or_a_taken_name_says_where_and_creates_nothing(typed: Type, app: Server) -> None:
    ScriptedAgent(app).sync()
    app.create("taken")
    printed = typed("jobs submit training taken --config config.yaml")
    assert printed.code == 1
    assert "A job with this id already exists.\nGive the job another name." in printed.err
    wrong = []
    for number, (config, message) in enumerate(WRONG_CONFIGS.items()):
        Path("config.yaml").write_text(config)
        printed = typed("jobs submit training bad --config config.yaml")
        if (printed.code, printed.out) != (1, "") or message not in printed.err:
            wrong.append((message, printed))
        if number == 0:
            assert staged(app) == [], "nothing is uploaded for what this machine can refuse"
    assert not wrong
    assert [job["jobId"] for job in app.get("/v1/projects/p/jobs")["jobs"]] == ["taken"]


def test_validate_shows_the_gang_and_submits_nothing(typed: Type, app: Server) -> None:
    printed = typed("jobs validate --config config.yaml --worker-count 2 --worker-machine-type local-2")
    assert printed.code == 0
    assert "Nothing was submitted." in printed.out
    message = typed("jobs validate --config config.yaml --runtime-version 2.11").err
    assert "runtimeVersion 2.11 was TensorFlow 2.11" in message
    assert app.get("/v1/projects/p/jobs") == {}
    assert staged(app) == []


def test_list_has_gclouds_columns_and_filters_limits_sorts_and_formats(typed: Type, app: Server) -> None:
    assert typed("jobs list") == CommandResult(0, "", "Listed 0 items.\n")
    for name in ("rnn_2", "rnn_10", "cnn"):
        app.create(name)
    header, *rows = typed("jobs list").out.splitlines()
    assert header.split() == ["JOB_ID", "STATUS", "CREATED"]
    assert sorted(row.split()[:2] for row in rows) == [[name, "QUEUED"] for name in ("cnn", "rnn_10", "rnn_2")]
    assert typed("jobs list --format value(jobId) --sort-by ~jobId --limit 2").out == "rnn_2\nrnn_10\n"
    assert typed("jobs list --format value(jobId) --filter jobId:cnn*").out == "cnn\n"
    assert len(json.loads(typed("jobs list -o json").out)) == 3
    assert typed("jobs list --uri --filter jobId:cnn*").out.endswith("/v1/projects/p/jobs/cnn\n")


UNKNOWN_KEYS = {
    "jobs list --sort-by ~createtime": "argument --sort-by: jobs have no key 'createtime'. Did you mean createTime?",
    "jobs list --format value(jobId,foo)": "argument --format: jobs have no key 'foo'.",
    "jobs list --format csv(trainingInput.workers)": "jobs have no key 'trainingInput.workers'.",
    "jobs describe a --format value(stat)": "jobs have no key 'stat'. Did you mean state?",
    "jobs list --project Foo/Bar": "--project: 'Foo/Bar' is not a project id",
}
KEYS_WITHOUT_A_VALUE = (
    "jobs list --format value(errorMessage,endTime,trainingOutput.trials[0].finalMetric.objectiveValue)",
    "jobs list --format value(labels.team,trainingInput.workerConfig.acceleratorConfig.type)",
    "jobs list --format value(trainingInput.hyperparameters.params[0].discreteValues) --sort-by startTime,~labels.a",
)


def test_list_and_describe_refuse_keys_that_no_job_can_have(typed: Type, app: Server) -> None:
    wrong = []
    for words, refusal in UNKNOWN_KEYS.items() if app.create("a") else ():
        printed = typed(words)
        if printed.code == 0 or printed.out or refusal not in printed.err:
            wrong.append(f"{words}: {printed}")
    wrong += [words for words in KEYS_WITHOUT_A_VALUE if typed(words).code]
    assert not wrong, "\n".join(wrong)


def test_flags_of_gcloud_stand_before_the_verb_too(typed: Type, app: Server) -> None:
    app.create("a")
    assert typed("--project p jobs -q --verbosity debug --format=value(jobId) list").out == "a\n"
    assert typed("--project q jobs --no-user-output-enabled list --format value(jobId)").out == ""
    assert "Submit and manage training jobs." in typed("jobs --quiet --help").out
    assert typed("jobs --flatten trainingInput.args[] describe a").out.count("jobId: a") == 1
    assert "No such option" in typed("jobs --quite list").err


def test_list_on_a_terminal_fits_and_is_coloured(typed: Type, app: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    running_agent(app, "trained")
    for name, value in {"TERM": "xterm", "COLUMNS": "60", "TZ": "UTC"}.items():
        monkeypatch.setenv(name, value)
    for no_color, state in {"1": "RUNNING", "": "\x1b[36mRUNNING\x1b[0m"}.items():
        monkeypatch.setenv("NO_COLOR", no_color)
        with monkeypatch.context() as patched:
            patched.setattr("sys.stdout", terminal := Terminal())
            typed("jobs list")
        assert terminal.getvalue().endswith(f"\ntrained  {state}  11-20 12:00  1 of 1 replica running\n")


def test_describe_prints_the_v1_job_as_yaml_and_a_summary_on_stderr(typed: Type, app: Server) -> None:
    app.create("j")
    printed = typed("jobs describe j")
    assert yaml.safe_load(printed.out) == app.job("j")
    assert "jobs stream-logs j" in printed.err
    printed = typed("jobs describe j -o json")
    assert (json.loads(printed.out), printed.err) == (app.job("j"), "")
    assert typed("jobs describe j --format value(jobId,state)").out == "j\tQUEUED\n"
    assert json.loads(typed("jobs describe j --all -o json").out)["events"]


def test_describe_and_explain_show_where_the_replicas_run_and_what_they_use(typed: Type, app: Server) -> None:
    agent = ScriptedAgent(app)
    agent.choice = ("process", "it is a package job")
    running_agent(app, "j", agent=agent)
    printed = typed("jobs describe j").err
    assert "\nAs processes: it is a package job.\n" in printed
    assert "cores" not in printed
    assert typed("jobs explain j").out.startswith("# master-replica-0, run 1, as processes: it is a package job\n")
    sample = {"run_id": agent.run.run_id, "task": "master-replica-0", "time": "2026-11-20T12:00:00Z"}
    used = sample | {"cpu": 0.87, "memory_bytes": 1_500_000_000}
    assert app.client.post("/agent/v1/usage", json={"samples": [used]}, headers=AGENT).status_code == 200
    assert "0.9 of 1 cores, 1.5 GB of 2.0 GB" in typed("jobs describe j").err


def test_job_that_does_not_exist_is_refused_with_the_name_that_was_meant(typed: Type, app: Server) -> None:
    app.create("resnet_lr0_1")
    rows = {
        "jobs describe none": (1, "ERROR: There is no job none in the project p.\n"),
        "jobs describe resnet_lr01": (1, "There is no job resnet_lr01 in the project p. Did you mean resnet_lr0_1?\n"),
        "jobs cancel resnet_lr0_1 zzz": (1, "There is no job zzz in the project p.\n"),
        "jobs cancel x --project pp": (1,
         "in the project pp. The project pp has no jobs. Did you mean p? Your projects: p.\n"),
        "jobs describe my-job": (2, "numbers and underscores. Did you mean my_job?\n"),
        "jobs submit training my-job --config config.yaml": (1,
         "letters, numbers and underscores. Did you mean my_job?\n"),
    }  # fmt: skip
    wrong = {
        words: printed
        for words, (code, text) in rows.items()
        if (printed := typed(words)).code != code or text not in printed.err
    }
    assert not wrong
    assert app.job("resnet_lr0_1")["state"] == "QUEUED"


def test_cancel_reports_what_it_does_and_is_harmless_when_repeated(typed: Type, app: Server) -> None:
    running_agent(app, "j")
    app.create("waits")
    printed = typed("jobs cancel j waits")
    started, queued = "1 replica is asked to stop.", "no replica of it is running."
    assert printed == CommandResult(0, "", f"Cancelling j: {started}\nCancelling waits: {queued}\n")
    app.tick()
    again = "j is already being cancelled.\nwaits has already ended (CANCELLED); nothing to cancel.\n"
    assert typed("jobs cancel j waits") == CommandResult(0, "", again)
    assert "\nThe job was cancelled by the user.\n" in typed("jobs describe waits").err


def test_update_labels_adds_removes_and_clears(typed: Type, app: Server) -> None:
    app.create("j")
    assert typed("jobs update j --update-labels a=1,b=2").code == 0
    assert typed("jobs update j --update-labels c=3 --remove-labels a").code == 0
    assert app.job("j")["labels"] == {"b": "2", "c": "3"}
    assert typed("jobs update j --clear-labels --update-labels d=4").code == 0
    assert typed("jobs update j --update-labels A=1").code == 1
    assert app.job("j")["labels"] == {"d": "4"}


def test_explain_prints_what_a_replica_sees_and_how_to_repeat_it(typed: Type, app: Server) -> None:
    running_agent(app, "j", pythonModule="trainer.task", useChiefInTfConfig=True)
    printed = typed("jobs explain j chief")
    assert printed.code == 0, printed.err
    assert 'TF_CONFIG={"cluster": {"chief": ["127.0.0.1:2222"]}' in printed.out
    assert "python3 -m trainer.task" in printed.out
    assert json.loads(typed("jobs explain j -o json").out)["task"] == "master-replica-0"
    assert "is not a replica name such as worker-replica-0" in typed("jobs explain j worker-one").err


def test_stream_logs_by_filters_and_what_a_wrong_one_may_be(typed: Type, app: Server) -> None:
    agent = running_agent(app, "j")
    agent.log("loss 3", "WARNING:root:Loss is high", "bye")
    agent.exit()
    app.tick()

    def texts(words: str, *more: str) -> list[str]:
        printed = typed(f"jobs stream-logs j -o json --task master-0 {words}", *more)
        assert printed.code == 0
        assert "WARNING" not in printed.err
        return [json.loads(line)["text"] for line in printed.out.splitlines()]

    assert texts("--search LOSS") == ["loss 3", "WARNING:root:Loss is high"]
    assert texts("--severity warning --no-follow") == ["WARNING:root:Loss is high"]
    assert texts("--since 2026-11-20T12:00:01Z") == []
    assert texts("--since 2026-11-20T11:59:59Z", "--search", "loss 3") == ["loss 3"]
    printed = typed("jobs stream-logs j --severity LOUD --since yesterday")
    assert printed.code == 2
    assert "--severity must be one of DEBUG, INFO, NOTICE, WARNING, ERROR, CRITICAL, not 'LOUD'." in printed.err
    assert "--since must be a time such as" in printed.err


def complete(words: str) -> list[str]:
    environment = {
        COMPLETION_VARIABLE: "bash_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split(" ")) - 1),
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        from click.shell_completion import BashComplete

        text = BashComplete(tree.trainyard, {}, "trainyard", COMPLETION_VARIABLE).complete()
    return [line.partition(",")[2] for line in text.splitlines()]


def test_completion_offers_verbs_jobs_and_tasks_and_without_a_server_silently_nothing(
    typed: Type, app: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    app.create("rnn_1")
    app.create("rnn_2")
    app.create("cnn")
    agent = ScriptedAgent(app)
    agent.sync()
    app.tick()
    assert complete("trainyard jobs su") == ["submit"]
    assert sorted(complete("trainyard jobs describe rn")) == ["rnn_1", "rnn_2"]
    assert complete("trainyard jobs explain rnn_1 ma") == ["master-replica-0"]
    assert "--worker-count" in complete("trainyard jobs submit training --worker")
    for name, value in (("TRAINYARD_TOKEN", "wrong"), ("TRAINYARD_SERVER", "http://127.0.0.1:1")):
        monkeypatch.setenv(name, value)
        assert complete("trainyard jobs describe r") == []
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("parent", "login", "expected"),
    [("bash", "/usr/bin/zsh", "bash"), ("-zsh", "", "zsh"), ("make", "/usr/bin/fish", "fish"), ("make", "", "sh")],
)
def test_shell_init_without_a_shell_speaks_that_of_whoever_called(parent: str, login: str, expected: str) -> None:
    assert guess_shell({"SHELL": login}, parent) == expected


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish", "dash", "sh"])
def test_shell_init_names_every_verb_of_the_tree(shell: str) -> None:
    text = CliRunner().invoke(tree.trainyard, ["shell-init", shell]).output
    group = tree.trainyard.commands["jobs"]
    assert isinstance(group, click.Group)
    assert all(verb in text for verb in group.commands)


def test_metrics_as_a_table_and_as_json(typed: Type, app: Server) -> None:
    agent = running_agent(app)
    assert typed("jobs metrics job").err.startswith("The job has reported no metrics.")
    values = [("0.5", "0.1"), ("0.9", "0.2"), ("NaN", "0.3")]
    agent.log(
        *(f'{{"event": "progress", "step": {10 * n}, "loss": {a}, "rate": {b}}}' for n, (a, b) in enumerate(values, 1))
    )
    header, loss, _ = typed("jobs metrics job").out.splitlines()
    assert header.split() == ["METRIC", "REPLICA", "STEP", "LAST", "BEST", "MIN", "MAX"]
    assert loss.split() == ["loss", "master-replica-0", "30", "NaN", "0.5", "0.5", "0.9"]
    (row,) = json.loads(typed("jobs metrics job --name loss --task master -o json --curves").out)
    (times,) = [row.pop("times")]
    assert len(times) == 3
    assert row == {
        "name": "loss", "task": "master-replica-0", "run": 1, "step": 30, "value": "NaN", "best": 0.5, "bestStep": 10,
        "min": 0.5, "max": 0.9, "points": 3, "steps": [10, 20, 30], "values": [0.5, 0.9, "NaN"],
    }  # fmt: skip
    assert typed("jobs metrics job --name rate --format", "value(name,value)").out == "rate\t0.3\n"
    unknown = typed("jobs metrics job --name los")
    assert unknown.err == "The job has no metric los. Did you mean loss?\n"
    assert typed("jobs metrics nothing").code == 1


def test_delete_asks_and_names_what_goes_and_stays(typed: Type, app: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    app.create("old", jobDir="gs://models/old")
    app.cancel("old")
    monkeypatch.setattr("sys.stdin", Terminal("n\ny\n"))
    refused = typed("jobs delete old")
    assert refused.code == 1
    assert (
        "This deletes 1 job with record, log, curves and resource usage:\n"
        "  old (CANCELLED); gs://models/old stays\n"
        "This cannot be undone. The names are never used again.\n"
    ) in refused.err
    assert "Nothing was deleted." in refused.err
    assert typed("jobs delete old").code == 0
    assert app.get("/v1/projects/p/jobs") == {}


def test_delete_without_a_terminal_needs_yes_and_jobs_that_have_all_ended(typed: Type, app: Server) -> None:
    for name in ("a", "b"):
        app.create(name)
        app.cancel(name)
    app.create("active")
    refused = typed("jobs delete a b")
    assert refused.code == 2
    assert "There is no terminal to confirm this. Add --yes." in refused.err
    assert typed("jobs delete a active --yes") == CommandResult(
        1,
        "",
        "ERROR: Only jobs that have ended can be deleted: active is QUEUED. Nothing was deleted.\n"
        "To end it first:  jobs cancel active\n",
    )
    assert app.job("a")["state"] == "CANCELLED"
    deleted = typed("jobs delete a b a --yes")
    assert deleted == CommandResult(0, "", "Deleted the job [a].\nDeleted the job [b].\n")
    again = typed("jobs submit training a --config config.yaml --if-not-exists")
    assert again.code == 1
    assert "A job a existed and was deleted. A name is never used again: give the job another one." in again.err


def test_delete_by_a_filter_takes_the_ended_jobs_that_match(typed: Type, app: Server) -> None:
    for name in ("rnn_1", "rnn_2", "rnn_3", "cnn"):
        app.create(name)
    for name in ("rnn_1", "rnn_2", "cnn"):
        app.cancel(name)
    printed = typed("jobs delete --filter jobId:rnn* --yes")
    assert sorted(printed.err.splitlines()) == [
        "1 job of those that match has not ended, and stays.",
        "Deleted the job [rnn_1].",
        "Deleted the job [rnn_2].",
    ]
    assert sorted(typed("jobs list --format value(jobId)").out.split()) == ["cnn", "rnn_3"]
    nothing = typed("jobs delete --filter jobId:rnn_1 --yes")
    assert (nothing.code, nothing.err) == (0, "No job that has ended matches. Nothing was deleted.\n")
    for words in ("jobs delete --yes", "jobs delete cnn --filter jobId:rnn*", "jobs delete --filter foo:x --yes"):
        assert typed(words).code, words


def test_own_directory_is_the_default_one_and_never_a_job_dir_or_a_link(tmp_path: Path) -> None:
    detail = JobDetail(job={"jobId": "j", "trainingInput": {}}, state=JobState.FAILED)
    with_job_dir = detail.model_copy(update={"job": {"trainingInput": {"jobDir": str(tmp_path / "j")}}})
    (tmp_path / "j").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "j")
    assert own_directory(detail, tmp_path, "j") == tmp_path / "j"
    assert own_directory(with_job_dir, tmp_path, "j") is None
    assert own_directory(detail, tmp_path, "link") is None
    assert own_directory(detail, tmp_path, "other") is None
    assert own_directory(detail, None, "j") is None


TUTORIAL = """\
trainingInput:
  scaleTier: CUSTOM
  masterType: local-1
  masterConfig:
    imageUri: gcr.io/{path/to/image}:{tag}
  useChiefInTfConfig: true
  workerType: local-1
  workerCount: 1
  workerConfig:
    acceleratorConfig:
      count: 0
      type: NVIDIA_TESLA_T4
"""


def test_tutorial_is_a_job_after_what_errors_advise(typed: Type, app: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = ScriptedEngine()
    monkeypatch.setattr("docker.from_env", lambda: engine)
    Path("config.yaml").write_text("".join(f"{line.strip()}\n" for line in TUTORIAL.splitlines()))
    Path("Dockerfile").write_text("FROM scratch\n")
    flat = typed("jobs submit training --config config.yaml").err
    assert (
        """\
config.yaml:2: `scaleTier` stands at the top level: indent it below `trainingInput:`.
    scaleTier: CUSTOM
    ^
config.yaml:3: `masterType` stands at the top level: indent it below `trainingInput:`.
"""
        in flat
    )

    Path("config.yaml").write_text(TUTORIAL)
    refused = typed("jobs submit training --config config.yaml")
    assert refused.code == 1
    placeholder = "imageUri: gcr.io/{path/to/image}:{tag} is a placeholder ({path/to/image}, {tag})."
    assert f"config.yaml:5: masterConfig.{placeholder}" in refused.err
    command = shlex.split(refused.err.partition("To build its image and submit the job:  ")[2])[1:]
    assert command == ["jobs", "submit", "training", "--config", "config.yaml", "--build", "."]
    submitted = typed(" ".join([*command, "--format value(trainingInput.masterConfig.imageUri)"]))
    assert submitted.code == 0, submitted.err
    assert submitted.out == f"{engine.builds[0]['tag']}\n"

    Path("Dockerfile").unlink()
    without = typed("jobs submit training --config config.yaml --worker-count 2 -- --epochs 5")
    assert "With a Dockerfile, --build DIR builds its image and uses it." in without.err
    Path("config.yaml").write_text("trainingInput: {scaleTier: BASIC}\n")
    assert (
        "name it with --package-path: a script, a directory or a package."
        in typed("jobs validate --config config.yaml").err
    )


def test_explanation_at_the_local_service_has_the_secret_of_its_storage() -> None:
    shown = {"STORAGE_EMULATOR_HOST": "http://host.docker.internal:8471/***", "A": "/***"}
    explanation = Explanation(
        task="t",
        run=1,
        environment=shown,
        command=("c",),
        reproduce="env 'STORAGE_EMULATOR_HOST=http://host.docker.internal:8471/***' A='/***' c",
    )
    filled = job_texts.with_storage(explanation, "http://127.0.0.1:8471/s3cret")
    assert filled.environment == {**shown, "STORAGE_EMULATOR_HOST": "http://host.docker.internal:8471/s3cret"}
    assert filled.reproduce == "env 'STORAGE_EMULATOR_HOST=http://host.docker.internal:8471/s3cret' A='/***' c"
    for other in ("http://gcs", "http://127.0.0.1:8479/***"):
        elsewhere = explanation.model_copy(update={"environment": {"STORAGE_EMULATOR_HOST": other}})
        assert job_texts.with_storage(elsewhere, "http://127.0.0.1:8471/s3cret") == elsewhere


HOSTILE = "\x1b]0;title\x07\x1b[2J\x9b1A\x1b]52;c;Y2F0\x1b\\\r\x7fkept"
COMMANDS = (
    "jobs describe bad", "jobs describe bad --all", "jobs describe bad --format json",
    "jobs describe bad --format value(errorMessage)", "jobs describe bad --format value(trainingInput.args)",
    "jobs describe bad --format csv(jobId,errorMessage)", "jobs describe bad --format table(jobId,errorMessage)",
    "jobs list", "jobs list --format yaml", "jobs list --format value(errorMessage,trainingInput)", "jobs explain bad",
    "jobs explain bad -o json", "jobs metrics bad", "jobs metrics bad --format csv(name,last)", "jobs why bad",
    "jobs why next", "jobs top --once", "jobs top -o json", "jobs submit training bad", "jobs cancel bad",
)  # fmt: skip


def test_no_command_passes_terminal_escapes_of_jobs_on(typed: Type, app: Server) -> None:
    """All but `stream-logs`, which removes them on a terminal and copies lines into a pipe as they are."""
    app.create("bad", args=[HOSTILE])
    agent = ScriptedAgent(app)
    agent.sync()
    agent.start()
    agent.log(HOSTILE, json.dumps({"step": 1, "loss": 2, HOSTILE: 3}), f"RuntimeError: {HOSTILE}")
    running = [typed(words) for words in ("jobs top --once", "jobs describe bad --all")]
    agent.exit(code=1, message=HOSTILE)
    app.create("next", args=[HOSTILE])
    printed = {words: typed(words) for words in COMMANDS}
    texts = {words: result.out + result.err for words, result in printed.items()}
    texts |= {f"running {n}": result.out + result.err for n, result in enumerate(running)}
    passed = {words: text for words, text in texts.items() if re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", text)}
    assert passed == {}
    assert "kept" in printed["jobs describe bad --format value(errorMessage)"].out
    assert printed["jobs describe bad --format json"].code == 0
