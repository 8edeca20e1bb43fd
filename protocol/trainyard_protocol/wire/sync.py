"""Wire protocol between agent and server.

`POST /agent/v1/sync` has everything but log lines. The agent sends its capacity and the state of all its runs; the
answer lists every run that it should have, each with its target. The agent stops and deletes a run that is not listed.
Both messages are complete states, never differences, so each may be lost or repeated.

`POST /agent/v1/runs/{run}/replicas/{task}/logs` sends a `LogChunk` and is answered with a `LogReceipt`: the server
appends only lines that continue the stored ones, and returns their number; the agent continues there.
"""

import json
from datetime import datetime
from functools import lru_cache
from typing import Any, Literal

from pydantic import Field, field_serializer, model_validator

from trainyard_protocol.errors import InvalidArgument
from trainyard_protocol.job.cluster import TrialOrder
from trainyard_protocol.job.parsing import parse_training_input
from trainyard_protocol.job.pod_settings import PodSettings
from trainyard_protocol.job.resources import is_tpu
from trainyard_protocol.job.training_input import TrainingInput
from trainyard_protocol.message import Environment, Many, Wire
from trainyard_protocol.states import Reason, ReplicaState
from trainyard_protocol.wire.agents import AgentInfo, RuntimeName
from trainyard_protocol.wire.attachments import AttachOrder
from trainyard_protocol.wire.observations import ResolvedRun, Stall
from trainyard_protocol.wire.peers import Peers

NO_ROOM_AT_END = "When it ended, "
"""The beginning of the sentence about a full disk in the message of an exit: it may be why the program failed."""


class ClockOffset(Wire):
    """The server's clock less the agent's, in seconds, and the bound of the error."""

    offset_s: float
    error_s: float


class ExitReport(Wire):
    """The end of a replica.

    `code` is the shell's exit code (128 + n for signal n); None if the program never ran or the code is unknown.
    `after_stop`: a stop had been requested before. `message` is a sentence for the user; of a program that failed, what
    follows says whom it ran as. `order` counts the ends of its run from 1, where the runtime's clock has whole seconds
    only; 0: `finished_at` is exact. `error_s` is the bound of its error where it was related to the server's clock.
    """

    code: int | None
    reason: Reason
    message: str
    finished_at: datetime
    after_stop: bool = False
    order: int = 0
    error_s: float = 0.0


class ReplicaReport(Wire):
    """`address` is `host:port` once the replica is placed, "" before. `stacks` is a stack dump of its program, taken
    when a replica of its run stalled; "" without one. `waits` is why its engine has not started it yet, in the engine's
    words ("0/8 nodes are available: 8 Insufficient nvidia.com/gpu"); "" where nothing is known, or once it runs."""

    task: str
    state: ReplicaState
    address: str = ""
    started_at: datetime | None = None
    exit: ExitReport | None = None
    stall: Stall | None = None
    stacks: str = ""
    waits: str = ""


class TrialMeasurement(Wire):
    """The metric of a trial at a step, as its program wrote it to the metric file."""

    step: int
    value: float


MAX_REPORTED = 100
"""Measurements in a report: cloudml-hypertune keeps as many in its file."""


MAX_OTHERS = 20
"""Other metrics in a report."""


class RunReport(Wire):
    """`activity` is the present step of the preparation of a run ("installing trainer-0.0.0.tar.gz"). `runtime` is the
    runtime that the agent chose for it, None before; `runtime_reason` is why, where there was a choice ("the job
    brings its image"). `measurements`: of a trial, the last MAX_REPORTED in its metric file;
    `other_metrics`: the newest values of others in it by name, where it has none with the study's tag. `ready`, of a
    part of a run over several agents: it is placed, and reaches the addresses of the others. `resolved`: once it is
    known, in answer to an order that wants it."""

    run_id: str
    replicas: Many[ReplicaReport]
    activity: str = ""
    runtime: RuntimeName | None = None
    runtime_reason: str = ""
    measurements: Many[TrialMeasurement] = ()
    other_metrics: dict[str, TrialMeasurement] = Field(default_factory=dict)
    ready: bool = False
    resolved: ResolvedRun | None = None


class PackageLinks(Wire):
    """The answer of `GET /agent/v1/runs/{run}/packages`: the paths at which replicas of the run get its staged packages
    from the server, without a token, by URI. They are secrets, and valid until the run ends."""

    paths: dict[str, str] = Field(repr=False)


class SyncRequest(Wire):
    """`wait_s` is how long the server may hold an unchanged answer.

    `seen` is the `version` of the last answer that the agent applied; the server answers at once with another one.
    `clock` relates the agent's clock, which all times in `runs` are of, to the server's; None before the first answer.
    `echo` is the `stamp` of the last answer; "" before the first. `reaches` are the ids of the agents that have
    answered this one lately.
    """

    agent: AgentInfo
    runs: Many[RunReport]
    wait_s: float = 0.0
    seen: str = ""
    clock: ClockOffset | None = None
    echo: str = ""
    reaches: Many[str] = ()


class ReplicaOrder(Wire):
    """The resources of one replica: amounts, and on a machine CPU numbers and device ids. CPUs are shared only within a
    run. `pod` is for clusters alone."""

    task: str
    machine_type: str
    cpus: Many[int]
    memory_bytes: int
    gpus: Many[str] = ()
    vcpus: int = 0
    accelerator_type: str = ""
    accelerator_count: int = 0
    pod: PodSettings = PodSettings()

    @property
    def has_gpus(self) -> bool:
        return bool(self.gpus or self.accelerator_count) and not is_tpu(self.accelerator_type)


class StallPolicy(Wire):
    """When a replica that reports steps counts as stalled: after `limit_s` without a sign of progress, if that is set;
    else after `factor` times its longest recent time between two signs, and never before `least_s`. A run is silent
    after `silent_s`; 0: never."""

    least_s: float
    factor: float
    limit_s: float | None = None
    silent_s: float = 0.0


class SpreadOrder(Wire):
    """The order for a part of a run over several agents: place it, report its addresses, reach those of the others,
    report that it is ready, and start it once it `starts`.

    `gang` is the id of the run, which every part answers with at its addresses until it starts. `addresses` are those
    of all replicas by task, empty until each is known. They stay: an agent that has placed its part anew meanwhile
    gives it back. `agents` are the ids of the agents of the replicas, by task.
    """

    gang: str
    addresses: dict[str, str] = Field(default_factory=dict)
    agents: dict[str, str] = Field(default_factory=dict)
    starts: bool = False


class RunOrder(Wire):
    """A run that the agent should have.

    `training_input` is canonical (camelCase) on the wire. Where this side cannot parse it, `unreadable` is the error
    message and `training_input` is empty. `grace_s` is the time from SIGTERM to SIGKILL. Without `stall` no stall is
    detected. `log_quota_bytes` limits the stored log of one replica on its machine; 0 is no limit. `job_dir` is the
    job's directory where its training input has no jobDir; "" if it has none. `owner` submitted the job; "" if unknown.
    `priority` is the job's, for an engine with a queue of its own.
    `trial` is set for a trial of a study. `peers` are addresses by task that the cluster has beside those of this run's
    replicas: of the gang, for an evaluator that is started again alone. `run_token` is for calls of the server's
    storage and of MLflow's tracking while the run lives; "" for an engine that would show it.
    `tracking_run` is the job as a run of MLflow. `spread` is set for a part of a run over several agents.
    `wants_resolved` until the server has what the run has resolved.
    `retried_codes` are exit codes that lead to another run: with them keepOnFailure keeps nothing.
    `variables` are further ones of the service, for every replica. `reads` are directories of other jobs that its
    containers have as well, where they are paths.
    """

    run_id: str
    number: int
    target: Literal["run", "stop"]
    project: str
    job_id: str
    training_input: TrainingInput
    replicas: Many[ReplicaOrder]
    grace_s: float
    stall: StallPolicy | None = None
    log_quota_bytes: int = 0
    job_dir: str = ""
    owner: str = ""
    priority: int = 0
    trial: TrialOrder | None = None
    peers: dict[str, str] = Field(default_factory=dict)
    run_token: str = Field(default="", repr=False)
    tracking_run: str = ""
    spread: SpreadOrder | None = None
    wants_resolved: bool = False
    retried_codes: Many[int] = ()
    variables: Environment = Field(default_factory=dict)
    reads: Many[str] = ()
    unreadable: str = Field(default="", exclude=True)

    @property
    def directory(self) -> str:
        """The job's directory, whoever chose it; "" without one."""
        return self.training_input.job_dir or self.job_dir

    @model_validator(mode="before")
    @classmethod
    def _read_training_input(cls, data: Any) -> Any:
        if not isinstance(data, dict) or not isinstance(data.get("training_input"), dict):
            return data
        try:
            parsed = _parsed(json.dumps(data["training_input"]))
        except InvalidArgument as error:
            return {**data, "training_input": TrainingInput(), "unreadable": error.message}
        return {**data, "training_input": parsed}

    @field_serializer("training_input")
    def _canonical(self, value: TrainingInput) -> dict[str, Any]:
        return value.canonical()


@lru_cache(maxsize=256)
def _parsed(text: str) -> TrainingInput:
    """The training input of an order. The server sends it again in each answer; it is parsed once."""
    return parse_training_input(json.loads(text))


class SyncResponse(Wire):
    """`lease_s`: an agent without an answer for so long stops its replicas; None means never. `received_at` and
    `answered_at` are the server's times of the request and of this answer, of which `stamp` is the unique name.
    `attachments` are all that the agent should serve. `members` are the agents, this one among them, by a majority of
    which it may keep its lease; empty: it may not. `peers` are the other agents that it can ask. `name` is the agent's
    among all agents of the server: another one than it has given itself where that was in use."""

    version: str
    lease_s: float | None
    runs: Many[RunOrder]
    attachments: Many[AttachOrder] = ()
    members: Many[str] = ()
    peers: Peers | None = None
    stamp: str = ""
    name: str = ""
    received_at: datetime | None = None
    answered_at: datetime | None = None
