"""The files of a run on the shared file system, as the agent writes and reads them."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import AwareDatetime, BaseModel, Field

from trainyard_agent.control.keeping import kept
from trainyard_agent.engines.slurm import setup
from trainyard_agent.engines.slurm.containers import Bind
from trainyard_agent.host import environment as job_environment
from trainyard_agent.host import process_tags
from trainyard_agent.host.files import write_private
from trainyard_agent.runtimes.base import METRIC_FILE, Handle, Launch
from trainyard_agent.runtimes.run_directories import metric_file, mount_variables, secret_path, write_secret_files
from trainyard_protocol.errors import shown
from trainyard_protocol.net.gcs import PROXY_ROOTS
from trainyard_protocol.states import Reason
from trainyard_protocol.wire.agents import RuntimeName
from trainyard_protocol.wire.sync import RunOrder


class Times(BaseModel):
    """Seconds between two looks: of the agent at its files, of the agent at Slurm, of a rank at stop.json, and between
    two measurements of a rank. `settle`: how long after the end of a job its files may still be on their way.
    `silence`: how long a failure waits for a sign of life of each other replica, or for Slurm to end the job.
    `refusal`: how long Slurm must say that it will never start a job."""

    files: float = 1.0
    queue: float = 5.0
    rank: float = 1.0
    usage: float = 10.0
    settle: float = 5.0
    silence: float = 900.0
    refusal: float = 30.0


class SlurmRecord(Handle):
    """run.json: the handle, and the id of its job."""

    runtime: RuntimeName = "slurm"
    order: RunOrder | None = None
    job: str = ""


class SlurmStop(BaseModel):
    """stop.json: why the run was stopped, when it is killed, and the replicas that had ended before."""

    serial: int
    grace_s: float
    kill_at: AwareDatetime
    reason: Reason
    ended: list[str]


class SignsAsked(BaseModel):
    """ask.json: since when every rank that lives answers with here.json."""

    time: AwareDatetime


class SlurmStart(BaseModel):
    time: AwareDatetime


class SlurmEnd(BaseModel):
    """exit.json, of a rank. `taken`: Slurm had sent SIGTERM, before a stop of ours."""

    time: AwareDatetime
    status: int | None = None
    failure: str = ""
    taken: bool = False
    out_of_memory: bool = False


class SlurmJobEnd(BaseModel):
    """job.json: the state in which the job ended, as the agent saw it, or the reason for which it would never start.
    `words`: the last line of Slurm's output. `nodes`: the job's, as Slurm writes them; `lost_nodes`: those whose
    replicas had left no end by then."""

    time: AwareDatetime
    state: str
    words: str = ""
    nodes: str = ""
    lost_nodes: list[str] = []
    partition: str = ""
    limit: str = ""


class PullFailure(BaseModel):
    """image-failed.json: the words of the program that pulls, or `missing`: the node has no such program."""

    image: str
    words: str
    node: str = ""
    missing: bool = False


class PullWait(BaseModel):
    """image-waits.json: the words of the program whose pull is tried again."""

    words: str


class RankAddress(BaseModel):
    host: str
    port: int
    node: str = ""


class RankUsage(BaseModel):
    cpu_s: float = Field(ge=0)
    memory: int


def replica_environment(run_id: str, launch: Launch, directory: Path, inherited: Mapping[str, str]) -> dict[str, str]:
    """The variables of one replica. Its node adds those of its devices, and TMPDIR where the job has none."""
    path = inherited.get("PATH", os.defpath)
    if launch.image:  # what its program needs is in its container
        return {**job_environment.of_replica(inherited, None, directory / "work"), "PATH": path}
    return {
        **job_environment.of_replica(inherited, None, directory / "work"),
        "PATH": f"{Path(launch.command[0]).parent}{os.pathsep}{path}",
        "PYTHONUNBUFFERED": "1",  # so that a line is in the log when it is printed
        **({METRIC_FILE: str(metric_file(directory))} if launch.writes_metrics else {}),
        **mount_variables(directory.parent, launch.mounts),
        **launch.environment,
        **{
            file.variable: str(secret_path(directory / "secrets", file.name, file.path)) for file in launch.secret_files
        },
        **process_tags.tag(run_id, launch.task),
    }


def container(run_id: str, launch: Launch, images: Sequence[str], directory: Path, program: str) -> dict[str, object]:
    """The container of a replica, for its rank: its image and program, its directories and its variables. Those of the
    node are `replica_environment`."""
    roots = launch.environment.get(PROXY_ROOTS, "")
    secrets = directory / "secrets"
    binds = [
        *([Bind(launch.job_dir_source, launch.job_dir)] if launch.job_dir_source else []),
        *(Bind(mount.source, mount.path, mount.read_only) for mount in launch.mounts),
        *(Bind(str(secret_path(secrets, file.name, file.path)), file.path, True) for file in launch.secret_files),
        *([Bind(str(directory / "work"), str(directory / "work"))] if launch.writes_metrics else []),
        *([Bind(roots, roots, True, True)] if roots.startswith("/") else []),
    ]
    of_mounts = (mount.variables_at(mount.path) for mount in launch.mounts)
    return {
        "program": program,
        "options": ["--nv"] if launch.accelerator_count else [],
        "binds": binds,
        "image": images.index(launch.image),
        "before": kept((), launch.keep, launch.task, alone=True),
        "entrypoint": list(launch.entrypoint),
        "arguments": list(launch.command),
        "environment": {
            "PYTHONUNBUFFERED": "1",
            **({METRIC_FILE: str(metric_file(directory))} if launch.writes_metrics else {}),
            **{name: value for variables in of_mounts for name, value in variables.items()},
            **launch.environment,
            **{file.variable: file.path for file in launch.secret_files},
            **process_tags.tag(run_id, launch.task),
        },
    }


def fixed_variables(environment: Mapping[str, str], launch: Launch, inherited: Mapping[str, str]) -> list[str]:
    """Names of variables that a setup does not change: those of the service, of the job and of the agent's settings."""
    open_ = job_environment.of_replica(inherited, None, Path()).keys() | {"PATH"}
    return sorted((environment.keys() - open_) | launch.environment.keys())


def failed_setup(run: Path, order: RunOrder | None) -> str:
    """The line of the job's setup that failed, for people; "" if none has."""
    lines = order.training_input.engine_options.slurm.setup if order is not None else ()
    try:
        number = int((run / setup.FAILED).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return ""
    return f"Line {number + 1} ({shown(lines[number])})" if number < len(lines) else ""


def write_secrets(launch: Launch, directory: Path) -> None:
    """Write the replica's secrets for its user alone: those in secrets.json until its rank has read them. Slurm shows
    the scripts and the variables of jobs, so they are in neither. Raises OSError."""
    if not launch.secret_values:
        return
    content = {"environment": dict(launch.secrets), "values": launch.secret_values}
    write_private(directory / "secrets.json", json.dumps(content))
    write_secret_files(directory / "secrets", launch.secret_files)


def last_line(path: Path) -> str:
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError:
        return "it wrote no output"
    return next((line.strip() for line in reversed(lines) if line.strip()), "it wrote no output")
