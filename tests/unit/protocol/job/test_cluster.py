"""TF_CONFIG and the other variables, against the shapes that the real service gave."""

import importlib.util
import json
import shlex
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from trainyard_protocol.job.cluster import (
    PRIMARY,
    Task,
    TrialOrder,
    cluster_spec,
    environment,
    interface_variables,
    says_chief,
    storage_variables,
    tf_config,
    thread_variables,
    tracking_variables,
)
from trainyard_protocol.job.commands import module_command, reproduce
from trainyard_protocol.job.keys.dependencies import JOB_DIR_VARIABLE
from trainyard_protocol.job.parsing import parse_training_input
from trainyard_protocol.job.ranks import RANK_NAMES, RANK_VARIABLES
from trainyard_protocol.job.training_input import TrainingInput

MASTER, WORKER_0, WORKER_1 = Task("master", 0), Task("worker", 0), Task("worker", 1)
PS, EVALUATOR = Task("ps", 0), Task("evaluator", 0)
ADDRESSES = {
    MASTER: "cmle-training-master-5f-0:2222",
    WORKER_0: "cmle-training-worker-5f-0:2222",
    WORKER_1: "cmle-training-worker-5f-1:2222",
    PS: "cmle-training-ps-5f-0:2222",
    EVALUATOR: "cmle-training-evaluator-5f-0:2222",
}


@dataclass(frozen=True)
class Job:
    training_input: TrainingInput
    job_id: str = "census_1"
    project: str = "my-project"
    trial: TrialOrder | None = None
    variables: Mapping[str, str] = field(default_factory=dict)


TRIAL = TrialOrder(
    study="census_tuned", number=3, metric_tag="acc", hyperparameters={"hyperparameter_metric_tag": "acc"}
)


def context(**fields: object) -> Job:
    return Job(parse_training_input(fields))


def test_tf_config_of_a_worker_has_cluster_task_job_and_environment() -> None:
    value = tf_config(context(workerCount=2, useChiefInTfConfig=True), ADDRESSES, WORKER_1)
    assert value == {
        "cluster": {
            "chief": ["cmle-training-master-5f-0:2222"],
            "worker": ["cmle-training-worker-5f-0:2222", "cmle-training-worker-5f-1:2222"],
            "ps": ["cmle-training-ps-5f-0:2222"],
        },
        "task": {"type": "worker", "index": 1},
        "job": '{"worker_count": "2", "use_chief_in_tf_config": true}',
        "environment": "cloud",
    }


def test_job_too_long_for_a_variable_is_described_without_its_largest_fields() -> None:
    long = "x" * 120_000
    pool = {"machineSpec": {"machineType": "n1-standard-4"}, "containerSpec": {"imageUri": "a", "args": [long]}}
    spec = {"workerPoolSpecs": [pool], "network": "n"}
    jobs = {
        "nothing": (context(region="here", args=["x" * 60_000]), None),
        "arguments": (context(region="here", args=[long, long]), ["args"]),
        "many arguments": (context(region="here", args=["ab"] * 40_000), ["args"]),
        "a variable and arguments": (context(args=["x" * 90_000], env={"A": '"' * 70_000}), ["env", "args"]),
        "values of a study": (replace(context(),
         trial=TRIAL.model_copy(update={"hyperparameters": {"params": [long]}})), ["hyperparameters"]),
        "a custom job": (context(region="here", customJob={"displayName": "d", "jobSpec": spec}),
         ["worker_pool_specs"]),
    }  # fmt: skip
    wrong = {}
    for name, (job, left_out) in jobs.items():
        variables = environment(job, ADDRESSES, WORKER_1)
        described = json.loads(variables["CLOUD_ML_JOB"])
        same = all(described == json.loads(config["job"]) for config in _with_a_job_as_text(variables))
        too_long = [key for key in NAMES if len(f"{key}={variables[key]}") >= 2**17]
        if described.get("left_out") != left_out or too_long or not same:
            wrong[name] = (described, too_long)
        assert variables["WORLD_SIZE"] == "3"
    assert not wrong


NAMES = ("CLOUD_ML_JOB", "TF_CONFIG", "CLUSTER_SPEC")


def _with_a_job_as_text(variables: dict[str, str]) -> list[dict[str, Any]]:
    values = [json.loads(variables[name]) for name in ("TF_CONFIG", "CLUSTER_SPEC")]
    return [value for value in values if isinstance(value["job"], str)]


def test_tf_config_of_a_lone_master_and_of_an_evaluator() -> None:
    lone = tf_config(context(), {MASTER: "127.0.0.1:2222"}, MASTER)
    assert (lone["cluster"], lone["task"]) == ({"chief": ["127.0.0.1:2222"]}, {"type": "chief", "index": 0})
    evaluator = tf_config(context(), ADDRESSES, EVALUATOR)
    assert evaluator["task"] == {"type": "evaluator", "index": 0}
    assert "evaluator" not in evaluator["cluster"]


def test_tf_config_in_a_tuning_job_names_the_trial() -> None:
    """And the job that it describes is the study's."""
    config = tf_config(replace(context(args=["a"]), trial=TRIAL), ADDRESSES, MASTER)
    assert config["task"]["trial"] == "3"
    assert json.loads(config["job"]) == {"args": ["a"], "hyperparameters": {"hyperparameter_metric_tag": "acc"}}


@pytest.mark.parametrize(
    ("fields", "chief"),
    [
        ({"masterConfig": {"imageUri": "x"}}, False),
        ({"masterConfig": {"imageUri": "x"}, "useChiefInTfConfig": False}, False),
        ({"masterConfig": {"imageUri": "x"}, "useChiefInTfConfig": True}, True),
        ({"pythonModule": "a.b"}, True),
        ({"pythonModule": "a.b", "runtimeVersion": "1.15"}, False),
        ({"pythonModule": "a.b", "runtimeVersion": "2.0"}, False),
        ({"pythonModule": "a.b", "runtimeVersion": "2.1"}, True),
        ({"pythonModule": "a.b", "runtimeVersion": "2.11"}, True),
        ({"pythonModule": "a.b", "runtimeVersion": "1.15", "useChiefInTfConfig": True}, True),
    ],
)
def test_primary_is_called_chief_or_master_by_container_flag_and_runtime(fields: dict[str, Any], chief: bool) -> None:
    job = context(**fields)
    assert says_chief(job.training_input) is chief
    name = "chief" if chief else "master"
    assert tf_config(job, ADDRESSES, MASTER)["task"]["type"] == name
    assert name in tf_config(job, ADDRESSES, WORKER_0)["cluster"]


def test_custom_job_has_pools_in_cluster_spec_and_its_directories_in_variables_alone() -> None:
    spec = {"workerPoolSpecs": [{"replicaCount": "1"}]}
    given = {"displayName": "a", "jobSpec": spec}
    job = context(customJob=given, useChiefInTfConfig=True, pythonModule="a.b", args=["--x"], jobDir="gs://b/out")
    variables = environment(job, ADDRESSES, WORKER_1, job_dir="gs://b/out")
    assert json.loads(variables["CLUSTER_SPEC"]) == {
        "cluster": {"workerpool0": ["cmle-training-master-5f-0:2222"],
         "workerpool1": ["cmle-training-worker-5f-0:2222", "cmle-training-worker-5f-1:2222"],
         "workerpool2": ["cmle-training-ps-5f-0:2222"], "workerpool3": ["cmle-training-evaluator-5f-0:2222"]},
        "task": {"type": "workerpool1", "index": 1},
        "job": {"worker_pool_specs": [{"replica_count": "1"}]},
        "environment": "cloud",
    }  # fmt: skip
    config = json.loads(variables["TF_CONFIG"])
    assert config["task"] == {"type": "worker", "index": 1}
    assert list(config["cluster"]) == ["chief", "worker", "ps"]
    assert variables["AIP_MODEL_DIR"] == "gs://b/out/model/"
    assert module_command(job.training_input) == ["python3", "-m", "a.b", "--x"]


def test_cluster_spec_has_the_evaluator_and_always_says_master() -> None:
    value = cluster_spec(context(useChiefInTfConfig=True), ADDRESSES, MASTER)
    assert set(value["cluster"]) == {"master", "worker", "ps", "evaluator"}
    assert value["task"] == {"type": "master", "index": 0}


def test_environment_of_a_worker_has_every_variable_of_the_service_and_of_the_frameworks() -> None:
    job = context(region="us-central1", workerCount=2, pythonModule="trainer.task")
    variables = environment(job, ADDRESSES, WORKER_0)
    assert json.loads(variables.pop("TF_CONFIG")) == tf_config(job, ADDRESSES, WORKER_0)
    assert json.loads(variables.pop("CLUSTER_SPEC")) == cluster_spec(job, ADDRESSES, WORKER_0)
    assert variables == {
        "CLOUD_ML_JOB": '{"worker_count": "2", "python_module": "trainer.task", "region": "us-central1"}',
        "CLOUD_ML_JOB_ID": "census_1",
        "CLOUD_ML_PROJECT_ID": "my-project",
        "CLOUD_ML_REGION": "us-central1",
        "RANK": "1",
        "WORLD_SIZE": "3",
        "MASTER_ADDR": "cmle-training-master-5f-0",
        "MASTER_PORT": "2222",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "NODE_RANK": "1",
        "GROUP_RANK": "1",
        "GROUP_WORLD_SIZE": "3",
        "PET_NNODES": "1:3",
        "PET_NODE_RANK": "1",
        "PET_MASTER_ADDR": "cmle-training-master-5f-0",
        "PET_MASTER_PORT": "2222",
        "JAX_COORDINATOR_ADDRESS": "cmle-training-master-5f-0:2222",
        "JAX_NUM_PROCESSES": "3",
        "JAX_PROCESS_ID": "1",
        "KERAS_DISTRIBUTION_JOB_ADDRESSES": (
            "cmle-training-master-5f-0:2222,cmle-training-worker-5f-0:2222,cmle-training-worker-5f-1:2222"
        ),
        "KERAS_DISTRIBUTION_NUM_PROCESSES": "3",
        "KERAS_DISTRIBUTION_PROCESS_ID": "1",
    }


def test_environment_names_the_directory_of_the_job_and_what_is_below_it() -> None:
    variables = environment(context(), ADDRESSES, MASTER, job_dir="gs://b/runs/")
    below = {name: value for name, value in variables.items() if name.startswith("AIP_")}
    assert variables["TRAINYARD_JOB_DIR"] == "gs://b/runs/"
    assert below == {
        "AIP_MODEL_DIR": "gs://b/runs/model/",
        "AIP_CHECKPOINT_DIR": "gs://b/runs/checkpoints/",
        "AIP_TENSORBOARD_LOG_DIR": "gs://b/runs/logs/",
    }


def test_jax_reads_the_coordinator_from_a_variable_and_number_and_id_from_none() -> None:
    """Once it does, programs can leave out the line in docs/tutorials/your-own-trainer.md. It reads JAX's source."""
    jax = importlib.util.find_spec("jax")
    assert jax is not None
    assert jax.origin is not None
    internals = Path(jax.origin).parent / "_src"
    files = [internals / "distributed.py", *(internals / "clusters").glob("*.py")]
    texts = "".join(file.read_text(encoding="utf-8") for file in files)
    variables = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")
    assert [name for name in variables if name in texts] == ["JAX_COORDINATOR_ADDRESS"]


def test_ranks_begin_with_the_master_and_ps_and_evaluator_have_none() -> None:
    tasks = (MASTER, WORKER_0, WORKER_1, PS, EVALUATOR)
    environments = [environment(context(), ADDRESSES, task) for task in tasks]
    assert [one.get("RANK") for one in environments] == ["0", "1", "2", None, None]
    assert not [one for one in environments[3:] if RANK_NAMES & one.keys()]


def test_ranks_of_a_replica_without_another_of_them_are_absent_as_under_python() -> None:
    alone = {MASTER: "127.0.0.1:2222"}
    for addresses in (alone, {**alone, PS: ADDRESSES[PS], EVALUATOR: ADDRESSES[EVALUATOR]}):
        assert not RANK_NAMES & environment(context(), addresses, MASTER).keys()
    given = environment(context(env={"RANK": "0", "WORLD_SIZE": "1"}), alone, MASTER)
    assert {name: given[name] for name in RANK_NAMES & given.keys()} == {"RANK": "0", "WORLD_SIZE": "1"}


def test_local_rank_is_absent_where_a_process_for_each_accelerator_is_to_be_started() -> None:
    local = {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    for accelerators, expected in ((0, local), (1, local), (2, {}), (8, {})):
        found = environment(context(), ADDRESSES, WORKER_0, accelerators=accelerators)
        assert {name: value for name, value in found.items() if name.startswith("LOCAL_")} == expected, accelerators
        assert found["NODE_RANK"] == "1"


def test_environment_of_a_tuning_job_has_trial_and_metric_tag() -> None:
    variables = environment(replace(context(), trial=TRIAL), ADDRESSES, MASTER)
    names = ("CLOUD_ML_JOB_ID", "CLOUD_ML_TRIAL_ID", "CLOUD_ML_HP_METRIC_TAG")
    assert [variables[name] for name in names] == ["census_tuned", "3", "acc"]
    assert "CLOUD_ML_TRIAL_ID" not in environment(context(), ADDRESSES, MASTER)


def test_variables_for_tensorflows_own_gs_are_those_of_jobs_that_may_have_it_and_name_gs() -> None:
    package = {"pythonModule": "a.b", "packageUris": ["gs://b/c.tar.gz"], "region": "r"}
    image = {"imageUri": "i", "containerArgs": ["--data=gs://b"]}
    cases: list[tuple[dict[str, Any], str, bool]] = [
        ({**package, "runtimeVersion": "2.11"}, "gs://b/job", True),
        ({**package, "runtimeVersion": "2.11", "args": ["--data", "gs://b"]}, "/job", True),
        ({**package, "runtimeVersion": "2.11"}, "/job", False),
        ({**package, "runtimeVersion": "torch"}, "gs://b/job", False),
        (package, "gs://b/job", False),
        ({"masterConfig": image}, "/job", True),
        ({"masterConfig": {"imageUri": "i"}}, "/job", False),
    ]
    given = {"STORAGE_EMULATOR_HOST": "http://host.docker.internal:1/secret", "STORAGE_EMULATOR_ROOTS": "/roots"}
    found = [bool(storage_variables(context(**one), ADDRESSES, job_dir, given)) for one, job_dir, _ in cases]
    assert found == [expected for *_, expected in cases]
    variables = storage_variables(context(**cases[0][0]), ADDRESSES, "gs://b", given)
    assert variables["https_proxy"] == "http://trainyard:secret@host.docker.internal:1"
    assert "cmle-training-ps-5f-0" in variables["no_proxy"].split(",")


def test_module_command_puts_job_dir_last_as_two_tokens() -> None:
    fields = {"pythonModule": "trainer.task", "args": ["--epochs", "5"], "jobDir": "gs://b/d"}
    command = ["python3", "-m", "trainer.task", "--epochs", "5", "--job-dir", "gs://b/d"]
    assert module_command(parse_training_input(fields)) == command
    assert module_command(parse_training_input({"pythonModule": "trainer.task"})) == command[:3]


def test_module_command_starts_the_launcher_of_a_program_that_was_packed() -> None:
    wheel = "trainyard_program-0.0.0-py3-none-any.whl"
    cases = {
        (f"staging://0/{wheel}",): ["trainyard_program", "train"],
        ("gs://b/a.tar.gz", f"gs://b/c/{wheel}"): ["trainyard_program", "train"],
        ("gs://b/trainyard_program-1/trainer-0.1.tar.gz",): ["train"],
        ("gs://b/trainyard_programs-0.1.tar.gz",): ["train"],
        (): ["train"],
    }
    for uris, words in cases.items():
        given = parse_training_input({"pythonModule": "train", "packageUris": list(uris), "args": ["--x"]})
        assert module_command(given) == ["python3", "-m", *words, "--x"], uris


def test_reproduce_is_a_shell_line_that_gives_back_environment_and_words() -> None:
    variables = {"TF_CONFIG": '{"a": "it\'s $HOME `x`"}', "RANK": "0"}
    words = ["python3", "-c", "import os, sys; print(os.environ['TF_CONFIG'], sys.argv[1:])", "a b", "$x"]
    line = reproduce(variables, words)
    shell = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=True)
    assert shell.stdout == "{\"a\": \"it's $HOME `x`\"} ['a b', '$x']\n"
    assert shlex.split(line)[0] == "env"


def test_task_name_round_trips_and_no_other_is_one() -> None:
    assert [Task.parse(task.name) for task in ADDRESSES] == list(ADDRESSES)
    for name in ("", "chief-replica-0", "worker-0", "worker-replica-x", "../worker-replica-0"):
        with pytest.raises(ValueError, match="not a task name"):
            Task.parse(name)


PAGE = Path(__file__).parents[4] / "docs" / "explanation" / "what-a-program-finds.md"


@dataclass(frozen=True)
class Trial:
    training_input: TrainingInput
    trial: TrialOrder
    job_id: str = "j"
    project: str = "p"
    variables: Mapping[str, str] = field(default_factory=lambda: {JOB_DIR_VARIABLE: "d", f"{JOB_DIR_VARIABLE}S": "d"})


def test_page_has_the_row_of_every_rank_and_no_other() -> None:
    table = PAGE.read_text().partition("### Ranks")[2].partition("\n\nSo these")[0]
    rows = [line for line in table.splitlines() if line.startswith("| `")]
    assert rows == [variable.row for variable in RANK_VARIABLES]


def test_page_names_every_variable_of_a_replica() -> None:
    job = Trial(TrainingInput(), TrialOrder(study="s", number=1, metric_tag="a", hyperparameters={}))
    addresses = {PRIMARY: "a:1", Task("worker", 0): "b:1"}
    names = {
        *environment(job, addresses, PRIMARY, "gs://b/j"),
        *thread_variables(1),
        *interface_variables("eth0"),
        *tracking_variables(TrainingInput(), "https://t", "r", "t", "ca.pem"),
    }
    page = PAGE.read_text()
    assert [name for name in sorted(names) if f"`{name}`" not in page] == []
