"""Environment variables and command line of a replica: TF_CONFIG and the others. Pure.

The agent starts replicas with these functions, and `jobs explain` prints their results, so both are identical.
Variables and rules: AI Platform Training's documentation of TF_CONFIG and CLUSTER_SPEC; those of PyTorch, JAX and Keras
are the table of `ranks`.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, Protocol, get_args

from trainyard_protocol.job.custom_jobs import POOLS, CustomJobSpec
from trainyard_protocol.job.ranks import RankPlace, rank_variables
from trainyard_protocol.job.training_input import TrainingInput
from trainyard_protocol.message import Wire
from trainyard_protocol.net.gcs import SCHEME, proxy_variables

TaskType = Literal["master", "worker", "ps", "evaluator"]
TASK_TYPES: tuple[TaskType, ...] = get_args(TaskType)

_TASK_NAME = re.compile(r"(master|worker|ps|evaluator)-replica-(\d+)")
_FIRST_RUNTIME_WITH_CHIEF = (2, 1)
TRACKING_URI = "MLFLOW_TRACKING_URI"

INTEROP_THREADS = "TF_NUM_INTEROP_THREADS"
_LEAST_INTEROP_THREADS = 4

_MOST_DESCRIBED = 2**16
"""Bytes of the job in TF_CONFIG: half of what the kernel lets a variable have; the cluster has the rest."""


class TrialOrder(Wire):
    """The study as a run is told that is its trial: the id of the study's job, the trial's number, the metric's tag,
    and `hyperparameters` as programs see them, with snake_case keys."""

    study: str
    number: int
    metric_tag: str
    hyperparameters: dict[str, Any]


@dataclass(frozen=True, slots=True, order=True)
class Task:
    """A member of the cluster. The primary is always a `master` in our code, `chief` in TF_CONFIG where it applies."""

    type: TaskType
    index: int

    @property
    def name(self) -> str:
        """The name in logs, errors and flags: `master-replica-0`, also for a chief."""
        return f"{self.type}-replica-{self.index}"

    @classmethod
    def parse(cls, name: str) -> "Task":
        """`"worker-replica-1"` -> Task. Raises ValueError on anything else."""
        match = _TASK_NAME.fullmatch(name)
        if match is None:
            raise ValueError(f"not a task name: {name!r} (a task name looks like worker-replica-0)")
        return cls(match[1], int(match[2]))  # type: ignore[arg-type]


PRIMARY = Task("master", 0)


class JobContext(Protocol):
    """The fields of a job that the variables contain. A `RunOrder` and the server's `JobSnapshot` have them. `trial`:
    None outside hyperparameter tuning. `variables`: further ones of the service."""

    @property
    def job_id(self) -> str: ...
    @property
    def project(self) -> str: ...
    @property
    def training_input(self) -> TrainingInput: ...
    @property
    def trial(self) -> TrialOrder | None: ...
    @property
    def variables(self) -> Mapping[str, str]: ...


def pool_of(task_type: str) -> str:
    """`worker` -> `workerpool1`: the worker pool of Vertex AI with the tasks of a type."""
    return f"workerpool{POOLS.index(task_type)}"


def says_chief(training_input: TrainingInput) -> bool:
    """Whether TF_CONFIG calls the primary `chief`.

    A custom container has a master unless useChiefInTfConfig is true. A package job depends on its runtime: 2.1 and
    later have a chief, and so does a job without a runtime version. With useChiefInTfConfig every job has a chief.
    """
    if training_input.use_chief_in_tf_config:
        return True
    if training_input.image_uri:
        return False
    return _runtime(training_input.runtime_version) >= _FIRST_RUNTIME_WITH_CHIEF


def tf_config(job: JobContext, addresses: Mapping[Task, str], task: Task) -> dict[str, Any]:
    """TF_CONFIG as a value. `addresses` are `host:port`, one for each task of the run.

    The evaluator is never part of the cluster; the type of its own task is `evaluator`.
    """
    primary = "chief" if says_chief(job.training_input) else "master"
    cluster = _cluster(addresses, primary)
    cluster.pop("evaluator", None)
    return _config(job, cluster, task, primary)


def cluster_spec(job: JobContext, addresses: Mapping[Task, str], task: Task) -> dict[str, Any]:
    """CLUSTER_SPEC as a value: with the evaluator, and always with `master` (useChiefInTfConfig is for TF_CONFIG
    alone). That of a custom job has its worker pools, and the job as a value.

    Source: https://cloud.google.com/vertex-ai/docs/training/distributed-training
    """
    spec = _config(job, _cluster(addresses, "master"), task, "master")
    if job.training_input.custom_job is None:
        return spec
    cluster = {pool_of(name): hosts for name, hosts in spec["cluster"].items()}
    return {**spec, "cluster": cluster, "task": {**spec["task"], "type": pool_of(task.type)}, "job": _described(job)}


def environment(
    job: JobContext, addresses: Mapping[Task, str], task: Task, job_dir: str = "", accelerators: int = 0
) -> dict[str, str]:
    """Every variable that the job and the service set for one replica, in a fixed order. The service's win.

    `job_dir` is the job's directory, which its jobDir or the service chose. The job of a trial is its study.
    `accelerators`: the number of those of the replica. Those of ranks are in a gang alone: see `ranks`.
    """
    training_input = job.training_input
    variables = {
        **training_input.env,
        "TF_CONFIG": _json(tf_config(job, addresses, task)),
        "CLUSTER_SPEC": _json(cluster_spec(job, addresses, task)),
        "CLOUD_ML_JOB": _json(_described(job)),
        "CLOUD_ML_JOB_ID": job.trial.study if job.trial else job.job_id,
        "CLOUD_ML_PROJECT_ID": job.project,
        "CLOUD_ML_REGION": training_input.region,
        **job_dir_variables(job_dir),
        **job.variables,
    }
    if job.trial:
        variables["CLOUD_ML_TRIAL_ID"] = str(job.trial.number)
        variables["CLOUD_ML_HP_METRIC_TAG"] = job.trial.metric_tag
    ranked = sorted(task for task in addresses if task.type in ("master", "worker"))
    if task in ranked:
        place = RankPlace(ranked.index(task), [addresses[other] for other in ranked], accelerators)
        variables |= rank_variables(place)
    return variables


def launch_environment(
    job: JobContext,
    addresses: Mapping[Task, str],
    task: Task,
    job_dir: str,
    given: Mapping[str, str],
    *,
    cpus: int,
    accelerators: int,
    grace_s: float,
    of_site: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, str]:
    """The variables that one replica is started with: those of `environment` over those that its agent gives to all of
    its replicas (`given`), over defaults, those of the agent's machine and server (`of_site`) among them.

    `grace_s` are the seconds between SIGTERM and SIGKILL, for a program that waits for others meanwhile: the launcher
    of programs.
    """
    return {
        **thread_variables(cpus),
        **storage_variables(job, addresses, job_dir, given),
        **of_site,
        **given,
        **environment(job, addresses, task, job_dir, accelerators),
        "TRAINYARD_GRACE_S": f"{grace_s:g}",
    }


def thread_variables(cpus: int) -> dict[str, str]:
    """Variables of a replica with that many CPUs, which those of the user replace.

    TensorFlow runs as many operations at a time as it has CPUs. With parameter servers, operations wait for others of
    the same process: on the only CPU of a machine type that was scaled down, for ever.
    """
    return {INTEROP_THREADS: str(_LEAST_INTEROP_THREADS)} if 0 < cpus < _LEAST_INTEROP_THREADS else {}


def interface_variables(interface: str) -> dict[str, str]:
    """Variables of a replica whose gang has parts on other machines: the collectives of NCCL and Gloo use the interface
    (a name, "": any) at which these reach it."""
    return {"NCCL_SOCKET_IFNAME": interface, "GLOO_SOCKET_IFNAME": interface} if interface else {}


def storage_variables(
    job: JobContext, addresses: Mapping[Task, str], job_dir: str, environment: Mapping[str, str]
) -> dict[str, str]:
    """Variables for TensorFlow's own gs://, of a job that names gs:// and has a runtime version of AI Platform, or
    brings an image, which may have any TensorFlow.

    `environment` is what the agent gives its replicas.
    """
    training_input = job.training_input
    may_be_tensorflow = training_input.image_uri or re.match(r"\d+\.\d+", training_input.runtime_version)
    texts = (job_dir, *training_input.args, *_container_words(training_input))
    if not may_be_tensorflow or not any(SCHEME in text for text in texts):
        return {}
    return proxy_variables(environment, [address.rpartition(":")[0] for address in addresses.values()])


def tracking_variables(
    training_input: TrainingInput, uri: str, run: str, token: str, ca_file: str = ""
) -> dict[str, str]:
    """Variables of MLflow's clients: the address of the server, the job as a run, and the token of its run. None where
    the job has an address of its own, or none is known.

    Source: https://mlflow.org/docs/latest/api_reference/cli.html, mlflow/environment_variables.py
    """
    if not (uri and run and token) or TRACKING_URI in training_input.env:
        return {}
    certificate = {"MLFLOW_TRACKING_SERVER_CERT_PATH": ca_file} if ca_file and uri.startswith("https://") else {}
    return {TRACKING_URI: uri, "MLFLOW_RUN_ID": run, "MLFLOW_TRACKING_TOKEN": token, **certificate}


def job_dir_variables(job_dir: str) -> dict[str, str]:
    """The job's directory for programs without a flag for it: our variable, and those of Vertex AI below it."""
    if not job_dir:
        return {}
    base = job_dir.rstrip("/")
    return {
        "TRAINYARD_JOB_DIR": job_dir,
        "AIP_MODEL_DIR": f"{base}/model/",
        "AIP_CHECKPOINT_DIR": f"{base}/checkpoints/",
        "AIP_TENSORBOARD_LOG_DIR": f"{base}/logs/",
    }


def _cluster(addresses: Mapping[Task, str], primary: str) -> dict[str, list[str]]:
    cluster: dict[str, list[str]] = {}
    for task_type in TASK_TYPES:
        tasks = sorted(task for task in addresses if task.type == task_type)
        if tasks:
            name = primary if task_type == "master" else task_type
            cluster[name] = [addresses[task] for task in tasks]
    return cluster


def _config(job: JobContext, cluster: dict[str, list[str]], task: Task, primary: str) -> dict[str, Any]:
    own: dict[str, Any] = {"type": primary if task.type == "master" else task.type, "index": task.index}
    if job.trial:
        own["trial"] = str(job.trial.number)
    return {"cluster": cluster, "task": own, "job": _json(_described(job)), "environment": "cloud"}


def _described(job: JobContext) -> dict[str, Any]:
    """The training input as programs see it; that of a trial has the study's hyperparameters. Of a custom job its
    jobSpec. One that is too long for a variable has its largest fields by name alone, in `left_out`."""
    if job.training_input.custom_job is not None:
        return _without_largest(CustomJobSpec.model_validate(job.training_input.custom_job.job_spec).snake_case())
    described = job.training_input.snake_case()
    return _without_largest(described | ({"hyperparameters": job.trial.hyperparameters} if job.trial else {}))


def _without_largest(described: dict[str, Any]) -> dict[str, Any]:
    """The description without its largest fields, as many as there must be, so that no argument of a program makes its
    variables impossible."""
    if _size(described) <= _MOST_DESCRIBED:
        return described
    rest, left_out = dict(described), list[str]()
    while _size(rest) > _MOST_DESCRIBED:
        left_out.append(max(rest, key=lambda name: _size(rest[name])))
        del rest[left_out[-1]]
    return {**rest, "left_out": left_out}


def _size(value: object) -> int:
    """Bytes of a value in TF_CONFIG, which has it as JSON in JSON."""
    return len(_json(_json(value)))


def _container_words(training_input: TrainingInput) -> Iterator[str]:
    """The commands and arguments that the job gives its images."""
    for config in (
        training_input.master_config,
        training_input.worker_config,
        training_input.parameter_server_config,
        training_input.evaluator_config,
    ):
        if config is not None:
            yield from (*config.container_command, *config.container_args)


def _runtime(version: str) -> tuple[int, int]:
    match = re.match(r"(\d+)\.(\d+)", version)
    return (int(match[1]), int(match[2])) if match else (999, 0)


def _json(value: object) -> str:
    return json.dumps(value, separators=(", ", ": "))
