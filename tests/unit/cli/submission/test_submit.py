import time
from pathlib import Path
from typing import Any

import click
import pytest

from trainyard_cli.submission import places, submit
from trainyard_cli.submission.flag_types import DurationText, EngineOption, NamedMount, Variable
from trainyard_cli.submission.flags import JobFlags, merge
from trainyard_cli.submission.sweep import swept
from trainyard_cli.submission.word import Word
from trainyard_protocol.errors import InvalidArgument
from trainyard_protocol.job.machines import default_catalog

NOW = time.mktime((2026, 11, 20, 14, 25, 1, 0, 0, -1))


def flags(**given: Any) -> JobFlags:
    return JobFlags(given)


def merged(data: dict[str, Any], **given: Any) -> dict[str, Any]:
    return merge(data, flags(**given))[0].body


def draft(
    directory: Path, text: str | None = None, name: str = "", args: tuple[str, ...] = (), **given: Any
) -> submit.JobDraft:
    config = None
    if text is not None:
        config = directory / "config.yaml"
        config.write_text(text)
    return submit.draft(config, flags(**given), current_dir=directory, name=name, user_args=args)


def refusal(made: submit.JobDraft) -> str:
    with pytest.raises(InvalidArgument) as caught:
        submit.check_locally(made, default_catalog())
    return caught.value.message


CUSTOM = """\
trainingInput:
  scaleTier: CUSTOM
  masterType: local-1
  pythonModule: trainer.task
  args: [--lr, 0.1]
"""


T4 = {"type": "NVIDIA_TESLA_T4", "count": "1"}
MERGED: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = [
    # the config, the flags, what they are together
    ({"training_input": {"worker_count": 1, "master_config": {"image_uri": "a"}}},
     {"worker_count": 2, "master_image_uri": "b"},
     {"training_input": {"worker_count": "2", "master_config": {"image_uri": "b"}}}),
    ({"labels": {"a": "1"}}, {"labels": ({"b": "2"}, {"c": "3"})}, {"labels": {"b": "2", "c": "3"}}),
    ({"trainingInput": {"secrets": [{"name": "OLD"}]}},
     {"set_secrets": ({"HF_TOKEN": "HF", "/run/key": "key"}, {"A": "A"})},
     {"trainingInput": {"secrets": [{"name": "HF", "env": "HF_TOKEN"}, {"name": "key", "file": "/run/key"},
     {"name": "A"}]}}),
    ({"trainingInput": {"env": {"A": "1", "B": "2"}}}, {"env": (("B", "x=1, y"), ("B", "3"), ("C", ""))},
     {"trainingInput": {"env": {"A": "1", "B": "3", "C": ""}}}),
    ({"trainingInput": {"mounts": [{"name": "a", "path": "/a"}, {"name": "b"}]}},
     {"mount": (("a", "/data"), ("c", ""))},
     {"trainingInput": {"mounts": [{"name": "b"}, {"name": "a", "path": "/data"}, {"name": "c"}]}}),
    ({"trainingInput": {"mounts": "a"}}, {"mount": (("b", ""),)}, {"trainingInput": {"mounts": [{"name": "b"}]}}),
    ({"trainingInput": {"env": ["A"]}}, {"env": (("B", "3"),)}, {"trainingInput": {"env": {"B": "3"}}}),
    ({"trainingInput": {"engineOptions": {"kubernetes": {"labels": {"a": "1", "b": "2"}, "queue": "x"}}}},
     {"engine_option": (("kubernetes", "labels", "b", "3"), ("kubernetes", "labels", "example.com/c", "4"),
     ("slurm", "setup", "", "module load a"), ("slurm", "setup", "", "module load b=c"), ("slurm", "qos", "", "high"))},
     {"trainingInput": {"engineOptions": {"kubernetes": {"labels": {"a": "1", "b": "3", "example.com/c": "4"},
     "queue": "x"}, "slurm": {"setup": ["module load a", "module load b=c"], "qos": "high"}}}}),
    ({}, {"worker_accelerator": {"type": "nvidia-tesla-t4"}},
     {"trainingInput": {"workerConfig": {"acceleratorConfig": T4}}}),
    ({"trainingInput": "x"}, {"region": "r"}, {"trainingInput": "x"}),  # left for the validation
]  # fmt: skip


def test_merge_follows_the_names_of_the_config_and_replaces_lists() -> None:
    assert [merged(data, **given) for data, given, _ in MERGED] == [expected for *_, expected in MERGED]


CPUS = {
    "": ("CUSTOM", "local-4", None),
    "trainingInput: {pythonModule: a.b, workerCount: 2}": ("CUSTOM", "local-4", "local-4"),
    "trainingInput: {scaleTier: CUSTOM, masterType: n1-highmem-8, workerCount: 1, workerType: standard}": (
        *("CUSTOM", "local-4", "standard"),
    ),
}
NAMES_MACHINES = (
    "trainingInput: {scaleTier: BASIC}",
    "trainingInput: {scaleTier: CUSTOM, masterType: local-2}",
    "trainingInput: {masterConfig: {imageUri: a}}",
    "training_input: {worker_count: 1}",
)


def test_cpus_are_the_machine_type_of_every_replica_without_one(tmp_path: Path) -> None:
    for text, (tier, master, worker) in CPUS.items():
        asked = draft(tmp_path, text or "trainingInput: {}", cpus=4).data.body["trainingInput"]
        assert (asked["scaleTier"], asked["masterType"], asked.get("workerType")) == (tier, master, worker)
    assert "--cpus: 'local-99' is not a machine type" in refusal(draft(tmp_path, CUSTOM, cpus=99))
    for flag, value in (("scale_tier", "basic"), ("master_machine_type", "local-2")):
        with pytest.raises(InvalidArgument, match="--cpus"):
            submit.draft(None, flags(cpus=4, **{flag: value}), current_dir=tmp_path)


def test_default_machine_is_one_cpu_where_a_program_names_no_machines(tmp_path: Path) -> None:
    messages: list[str] = []
    made = places.with_default_machine(draft(tmp_path, "trainingInput: {pythonModule: a.b}"), messages.append)
    assert made.data.body["trainingInput"]["masterType"] == "local-1"
    assert messages == ["Using 1 CPU (add --cpus N for more)."]
    for text in NAMES_MACHINES:
        named = draft(tmp_path, text)
        assert places.with_default_machine(named, messages.append) is named, text
    assert len(messages) == 1


@pytest.mark.parametrize(
    ("given", "in_config", "expected"),
    [
        ({"job_dir": "out"}, "", "here/out"),
        ({"job_dir": "../out/./x"}, "", "out/x"),
        ({"job_dir": "gs://b/d"}, "", "gs://b/d"),
        ({}, "out", "configs/out"),
        ({}, "gs://b/d", "gs://b/d"),
        ({"job_dir": "gs:/b/d"}, "", "gs:/b/d"),  # which is refused, and is no directory gs:
    ],
)
def test_relative_job_dir_becomes_absolute(
    tmp_path: Path, given: dict[str, str], in_config: str, expected: str
) -> None:
    (tmp_path / "configs").mkdir()
    config = tmp_path / "configs" / "c.yaml"
    config.write_text(CUSTOM + (f"  jobDir: {in_config}\n" if in_config else ""))
    made = submit.draft(config, flags(**given), current_dir=tmp_path / "here")
    job_dir = expected if ":/" in expected else str(tmp_path / expected)
    assert made.data.body["trainingInput"]["jobDir"] == job_dir


def test_relative_job_dir_is_refused_for_a_server_elsewhere_with_its_flag_or_line(tmp_path: Path) -> None:
    rows = [
        (draft(tmp_path, job_dir="out"), "--job-dir: out is relative to a directory of this machine"),
        (draft(tmp_path, CUSTOM + "  jobDir: ./out\n"), "config.yaml:6: jobDir: ./out is relative"),
    ]
    for made, says in rows:
        assert places.for_server(made, print, is_local=True).data.job_dir == str(tmp_path / "out")
        with pytest.raises(InvalidArgument) as caught:
            places.for_server(made, print, is_local=False)
        assert says in caught.value.message
    absolute = draft(tmp_path, job_dir="/data/out")
    assert places.for_server(absolute, print, is_local=False) is absolute


def test_draft_flags_that_exclude_each_other_are_refused_in_gclouds_words(tmp_path: Path) -> None:
    rows: list[tuple[dict[str, Any], str]] = [
        ({"scale_tier": "custom"}, "--master-machine-type is required if scale-tier is set to `CUSTOM`."),
        (
            {"master_image_uri": "i", "runtime_version": "2.1"},
            "Only one of --master-image-uri, --runtime-version can be set.",
        ),
        ({"packages": ((str(tmp_path / "none.tar.gz"),),)}, "none.tar.gz cannot be read"),
    ]
    for given, message in rows:
        with pytest.raises(InvalidArgument) as caught:
            draft(tmp_path, **given)
        assert message in caught.value.message
    made = draft(tmp_path, "trainingInput: {masterType: local-1, pythonModule: m}", scale_tier="custom")
    submit.check_locally(made, default_catalog())


WRONG: list[tuple[str, dict[str, Any], str]] = [
    # what follows CUSTOM in the config, the flags, what is said
    ("", {"name": "9x"}, "JOB: A name should start with a letter"),
    ("", {"worker_count": 2, "worker_machine_type": "local-88"},
     "--worker-machine-type: 'local-88' is not a machine type of this service."),
    ("  secrets:\n  - name: A\n  - name: B\n    env: A\n", {},
     "config.yaml:9: secrets[1].env: A is the variable of another secret"),
    ("  secrets:\n  - {name: A}\n  - {nam: B}\n", {},
     'config.yaml:8: "nam" is not a field of trainingInput.secrets[1]. Did you mean "name"?'),
    ("", {"set_secrets": ({"run/key": "key"},)}, "--set-secrets: 'run/key' cannot be the name of a variable."),
    ("  env:\n    DEBUG: 1\n", {}, "config.yaml:6: env: has 1 for DEBUG; a value is a string"),
    ("", {"env": (("TF_CONFIG", "1"),)}, "--env: sets TF_CONFIG, a variable of the service"),
    ("", {"keep_on_failure": "172800s"},
     "--keep-on-failure: must be more than 0s and at most 86400s (a day); this is 172800s."),
    ("", {"mount": (("a", "/usr"),)}, "--mount: must not be in the way of /usr; this is '/usr'."),
    ("", {"engine_option": (("slurm", "qos", "", "a b"),)}, "--engine-option: must be a name of letters"),
]  # fmt: skip


def test_check_locally_names_the_flag_or_the_line_of_what_is_wrong(tmp_path: Path) -> None:
    messages = [refusal(draft(tmp_path, CUSTOM + more, **given)) for more, given, _ in WRONG]
    assert [message for message, (*_, says) in zip(messages, WRONG, strict=True) if says not in message] == []
    both = refusal(draft(tmp_path, CUSTOM.replace("local-1", "local-99"), name="9x"))
    assert "config.yaml:3: masterType: 'local-99' is not a machine type of this service." in both
    assert "JOB: A name should start with a letter" in both


WORDS: list[tuple[Word[Any], dict[str, object]]] = [
    # a flag's type, and its words with their values, or with what is said of a wrong one
    (DurationText(), {"10m": "600s", "10": "must be a duration such as 30s, 10m, 2h"}),
    (Variable(),
     {"HERE": ("HERE", "a=b"), "A=b=c, d": ("A", "b=c, d"), "A=": ("A", ""),
     "MISSING": "MISSING is not set here; write MISSING=VALUE", "=x": "[=x] has no name"}),
    (NamedMount(),
     {"a:/data": ("a", "/data"), "a": ("a", "")} | dict.fromkeys(("/data:/data", ":/data", "a:", ""),
     "must look like imagenet:/data: a mount's name, no dir")),
    (EngineOption(),
     {"slurm.qos=high": ("slurm", "qos", "", "high"),
     "kubernetes.labels.example.com/team=a=b": ("kubernetes", "labels", "example.com/team", "a=b"),
     "slurm.setup=module load a.b": ("slurm", "setup", "", "module load a.b"),
     "qos=high": "[qos=high] is not an option of an engine; write slurm.qos=high or",
     "slurm.qos": "is not an option of an engine",
     "slurm.partition=x": "slurm has no option 'partition'; allowed: account, qos, constraint",
     "kubernetes.labels=x": "must look like kubernetes.labels.KEY=VALUE.",
     "slurm.qos.x=y": "must look like slurm.qos=VALUE."}),
]  # fmt: skip


def test_word_of_a_flag_is_its_value_or_refused_with_what_it_looks_like(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERE", "a=b")
    wrong = []
    for kind, words in WORDS:
        for word, expected in words.items():
            try:
                found: object = kind.convert(word, None, None)
            except click.BadParameter as error:
                found = expected if str(expected) in error.message else error.message
            if found != expected:
                wrong.append((word, found))
    assert not wrong


@pytest.mark.parametrize(
    ("file", "module", "expected"),
    [
        ("quickstart.yaml", "trainer.task", "quickstart_20261120_142501"),
        ("my-big.job.yaml", "trainer.task", "my_big_job_20261120_142501"),
        ("9lives.yaml", "trainer.task", "job_9lives_20261120_142501"),
        ("config.yaml", "trainer.task", "trainer_20261120_142501"),
        ("config.yaml", "", "config_20261120_142501"),
        ("-.yaml", "", "job_20261120_142501"),
        (None, "trainer.task", "trainer_20261120_142501"),
        (None, "", "job_20261120_142501"),
    ],
)
def test_job_names_come_from_config_or_module(tmp_path: Path, file: str | None, module: str, expected: str) -> None:
    config = None
    if file:
        config = tmp_path / file
        config.write_text("trainingInput: {}\n")
    made = submit.draft(config, flags(module_name=module), current_dir=tmp_path)
    names = submit.job_names(made, lambda: NOW)
    assert [next(names), next(names)] == [expected, f"{expected}_2"]


def test_job_names_of_a_job_with_a_name_are_that_name_alone(tmp_path: Path) -> None:
    assert list(submit.job_names(draft(tmp_path, CUSTOM, name="mine"))) == ["mine"]
    assert list(submit.job_names(draft(tmp_path, "jobId: theirs\n" + CUSTOM))) == ["theirs"]


def test_goal_follows_from_the_name_of_the_metric_or_is_asked_for(tmp_path: Path) -> None:
    study = CUSTOM + "  hyperparameters: {%s}\n"
    sweep = (swept("lr", ["1", "2"]),)
    rows: list[tuple[str, dict[str, Any], str]] = [
        ("", {"sweep": sweep, "metric": "loss"}, "MINIMIZE"),
        ("", {"sweep": sweep, "metric": "val_accuracy"}, "MAXIMIZE"),
        ("", {"sweep": sweep, "metric": "loss", "goal": "maximize"}, "MAXIMIZE"),
        ("", {"sweep": sweep, "metric": "speed"}, "its name does not tell"),
        ("", {"sweep": sweep, "metric": "speed", "goal": "minimize"}, "MINIMIZE"),
        ("", {"sweep": sweep}, "None"),
        ("goal: MAXIMIZE", {"sweep": sweep, "metric": "loss"}, "goal MAXIMIZE, which does not fit its name"),
        ("goal: MAXIMIZE", {"sweep": sweep, "metric": "speed"}, "MAXIMIZE"),
        ("goal: GOAL_TYPE_UNSPECIFIED", {"sweep": sweep, "metric": "loss"}, "MINIMIZE"),
        ("hyperparameterMetricTag: loss", {"sweep": sweep}, "None"),  # as on AI Platform: MAXIMIZE by default
    ]
    wrong = []
    for config, given, expected in rows:
        try:
            made = draft(tmp_path, study % config, **given)
            result = str(made.data.body["trainingInput"]["hyperparameters"].get("goal"))
        except InvalidArgument as error:
            result = error.message
        if expected not in result:
            wrong.append((config, given, result))
    assert not wrong


def test_early_stopping_replaces_the_rule_of_the_config_and_what_does_not_fit_it(tmp_path: Path) -> None:
    (tmp_path / "t.py").touch()
    params = "params: [{parameterName: lr, type: DISCRETE, discreteValues: [1]}]"
    asha = "earlyStopping: {rule: ASHA, minSteps: 5}"

    def hyperparameters(config: str, **given: Any) -> Any:
        text = f"trainingInput:\n  hyperparameters: {{{config}}}\n"
        return draft(tmp_path, text, package_path=str(tmp_path / "t.py"), **given).data.body["trainingInput"][
            "hyperparameters"
        ]

    assert "enableTrialEarlyStopping" not in hyperparameters(f"{params}, {asha}")
    rows: list[tuple[str, str, dict[str, Any]]] = [
        (asha, "asha", {"rule": "asha", "minSteps": 5}),
        (asha, "median", {"rule": "median"}),
        ("enableTrialEarlyStopping: false", "asha", {"rule": "asha"}),
    ]
    for config, flag, expected in rows:
        spec = hyperparameters(f"{params}, {config}", early_stopping=flag)
        assert (spec["enableTrialEarlyStopping"], spec["earlyStopping"]) == (True, expected)
    with pytest.raises(InvalidArgument, match="--early-stopping is for a study"):
        hyperparameters("", early_stopping="asha")


def test_style_of_arguments_follows_from_the_flag_the_config_the_names_or_the_source(tmp_path: Path) -> None:
    hydra = "import hydra\n@hydra.main(version_base=None)\ndef main(cfg):\n    pass\nmain()\n"
    omega = "from omegaconf import OmegaConf\ncfg = OmegaConf.from_cli()\n"
    nano = "exec(open('configurator.py').read())\n"
    plain = "import argparse\n"
    lr, plus = (swept("lr", ["1", "2"]),), (swept("+lr", ["1", "2"]),)
    rows: list[tuple[str, str, dict[str, Any], str]] = [
        (hydra, "", {"sweep": lr}, "OVERRIDES"),
        (omega, "", {"sweep": lr}, "OVERRIDES"),
        (nano, "", {"sweep": lr}, "FLAGS_WITH_EQUALS"),
        (plain, "", {"sweep": lr}, "None"),
        (plain, "", {"sweep": plus}, "OVERRIDES"),
        (plain, "", {"sweep": lr, "sweep_style": "overrides"}, "OVERRIDES"),
        (hydra, "", {"sweep": lr, "sweep_style": "flags-with-equals"}, "FLAGS_WITH_EQUALS"),
        (hydra, "params: [{parameterName: lr, type: DISCRETE, discreteValues: [1]}]", {}, "OVERRIDES"),
        (hydra, "params: [{parameterName: lr, type: DISCRETE, discreteValues: [1]}], argumentStyle: FLAGS", {},
         "FLAGS"),
        (plain, "", {"sweep_style": "overrides"}, "--sweep-style is for a study"),
    ]  # fmt: skip
    wrong = []
    for source, config, given, expected in rows:
        (tmp_path / "t.py").write_text(source)
        (tmp_path / "pkg").mkdir(exist_ok=True)
        (tmp_path / "pkg/__init__.py").touch()
        (tmp_path / "pkg/task.py").write_text(source)
        text = f"trainingInput:\n  hyperparameters: {{{config}}}\n"
        for program in ("t.py", "pkg"):
            try:
                made = draft(tmp_path, text, package_path=str(tmp_path / program), **given)
                result = str(made.data.body["trainingInput"]["hyperparameters"].get("argumentStyle"))
            except InvalidArgument as error:
                result = error.message
            if not result.startswith(expected):
                wrong.append((source, config, given, program, result))
    assert not wrong
