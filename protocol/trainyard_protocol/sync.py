"""Wire protocol between agent and server.

`POST /agent/v1/sync` has everything but log lines. The agent sends its capacity and the state of all its runs; the
answer lists every run that it should have, each with its target. The agent stops and deletes a run that is not listed.
Both messages are complete states, never differences, so each may be lost or repeated.

`POST /agent/v1/runs/{run}/replicas/{task}/logs` sends a `LogChunk` and is answered with a `LogReceipt`: the server
appends only lines that continue the stored ones, and returns their number; the agent continues there.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import lru_cache
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    FailFast,
    Field,
    field_serializer,
    model_validator,
)

from trainyard_protocol.errors import InvalidArgument
from trainyard_protocol.gcs import EMULATOR, without_secret
from trainyard_protocol.states import Reason, ReplicaState
from trainyard_protocol.training_input import TrainingInput, parse_training_input

Stream = Literal["stdout", "stderr"]
RuntimeName = Literal["process", "docker", "fake"]

_T = TypeVar("_T")
_MAX_VARIABLES = 1000

Many = Annotated[tuple[_T, ...], FailFast()]
"""A list in a message. Its first invalid element ends the validation: an error takes a hundred times its memory."""


def _not_too_many(value: object) -> object:
    if isinstance(value, Mapping) and len(value) > _MAX_VARIABLES:
        raise ValueError(f"may have {_MAX_VARIABLES} variables; it has {len(value)}")
    return value


Environment = Annotated[dict[str, str], BeforeValidator(_not_too_many)]
"""Environment variables in a message."""


class Wire(BaseModel):
    """Unknown fields are ignored, so that an older side can talk to a newer one."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Gpu(Wire):
    """`id` is the driver's (a UUID); `type` is an accelerator type as the catalogue writes it."""

    id: str
    type: str
    memory_bytes: int = 0


class Capacity(Wire):
    """The capacity of an agent for replicas, used or not: CPU numbers, bytes, devices."""

    cpus: Many[int]
    memory_bytes: int
    gpus: Many[Gpu] = ()


class RuntimeOffer(Wire):
    """A runtime of an agent. `replica_environment` is added to the environment of every replica there (such as
    STORAGE_EMULATOR_HOST, which is reported without its secret); it must not contain other secrets. `about` says on
    what it runs ("Docker engine 20.10.24"), `problem` why it starts nothing now. `retiring`: it ends the runs that it
    has, and never starts another."""

    name: RuntimeName
    replica_environment: Environment = {}
    about: str = ""
    problem: str = ""
    retiring: bool = False


def _reported(environment: dict[str, str]) -> dict[str, str]:
    return {name: without_secret(value) if name == EMULATOR else value for name, value in environment.items()}


class AgentInfo(Wire):
    """An agent. `agent_id` survives restarts.

    `capacity_mode`: `strict` places a gang only where it fits as asked; `fit` scales one down that is larger
    than the whole machine. `runtimes` has every runtime of the agent, all on the one `capacity`. `runtime` is that of
    package jobs, with its `replica_environment`; `runs_images`: a job with an image can start now. Agents before
    `runtimes` have `runtime` alone.
    """

    agent_id: str
    name: str
    version: str
    runtime: RuntimeName
    capacity_mode: Literal["strict", "fit"]
    runs_images: bool
    capacity: Capacity
    replica_environment: Environment = {}
    runtimes: Many[RuntimeOffer] = ()

    def offer(self, runtime: str) -> RuntimeOffer | None:
        """The runtime of that name, if the agent has it."""
        return next((offer for offer in self.runtimes if offer.name == runtime), None)

    def environment_in(self, runtime: str) -> dict[str, str]:
        """The variables that the agent adds to a replica in that runtime ("": not known which)."""
        offer = self.offer(runtime)
        return self.replica_environment if offer is None else offer.replica_environment

    def reported(self) -> "AgentInfo":
        """As the server may know it, and may show it: without the secret in the address of gs://."""
        return self.model_copy(
            update={
                "replica_environment": _reported(self.replica_environment),
                "runtimes": tuple(
                    offer.model_copy(update={"replica_environment": _reported(offer.replica_environment)})
                    for offer in self.runtimes
                ),
            }
        )

    @property
    def runs_packages(self) -> bool:
        """Whether a package job can start now."""
        offer = self.offer(self.runtime)
        return offer is None or not offer.problem

    @property
    def engine_problem(self) -> str:
        """The reason why its container engine starts nothing now; "" if it does, or is not expected to."""
        offer = self.offer("docker")
        return "" if offer is None or offer.retiring else offer.problem


class ExitReport(Wire):
    """The end of a replica.

    `code` is the shell's exit code (128 + n for signal n); None if the program never ran or the code is unknown.
    `after_stop`: a stop had been requested before. `message` is a sentence for the user.
    """

    code: int | None
    reason: Reason
    message: str
    finished_at: datetime
    after_stop: bool = False


class Stall(Wire):
    """A stalled replica: its step has not changed for too long, or beside one in the same run.

    `since` is the time of `step`, by its machine's clock. At the detection the step had not changed for `for_s`, of the
    allowed `limit_s`, without another sign of progress. `longest_s` is the longest time between two signs before.
    """

    step: int
    since: datetime
    limit_s: float
    for_s: float = 0.0
    longest_s: float = 0.0


class ReplicaReport(Wire):
    """`address` is `host:port` once the replica is placed, "" before. `stacks` is a stack dump of its program, taken
    when a replica of its run stalled; "" without one."""

    task: str
    state: ReplicaState
    address: str = ""
    started_at: datetime | None = None
    exit: ExitReport | None = None
    stall: Stall | None = None
    stacks: str = ""


class RunReport(Wire):
    """`activity` is the present step of the preparation of a run ("installing trainer-0.0.0.tar.gz"). `runtime` is the
    runtime that the agent chose for it, None before (and from older agents); `runtime_reason` is why, where there was a
    choice ("the job brings its image")."""

    run_id: str
    replicas: Many[ReplicaReport]
    activity: str = ""
    runtime: RuntimeName | None = None
    runtime_reason: str = ""


class SyncRequest(Wire):
    """`wait_s` is how long the server may hold an unchanged answer.

    `seen` is the `version` of the last answer that the agent applied; the server answers at once with another one.
    """

    agent: AgentInfo
    runs: Many[RunReport]
    wait_s: float = 0.0
    seen: str = ""


class ReplicaOrder(Wire):
    """The resources of one replica: CPU numbers, device ids, bytes. CPUs are shared only within a run."""

    task: str
    machine_type: str
    cpus: Many[int]
    memory_bytes: int
    gpus: Many[str] = ()


class StallPolicy(Wire):
    """When a replica that reports steps counts as stalled: after `limit_s` without a sign of progress, if that is set;
    else after `factor` times its longest recent time between two signs, and never before `least_s`."""

    least_s: float
    factor: float
    limit_s: float | None = None


class RunOrder(Wire):
    """A run that the agent should have.

    `training_input` is canonical (camelCase) on the wire. Where this side cannot parse it, `unreadable` is the error
    message and `training_input` is empty. `grace_s` is the time from SIGTERM to SIGKILL. Without `stall` no stall is
    detected. `log_quota_bytes` limits the stored log of one replica on its machine; 0 is no limit. `job_dir` is the
    job's directory where its training input has no jobDir; "" if it has none.
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
    """`lease_s`: an agent without an answer for so long stops its replicas; None means never."""

    version: str
    lease_s: float | None
    runs: Many[RunOrder]


class LogLine(Wire):
    """One line without its newline. `time` is RFC 3339, when the agent's side read it.

    `partial`: the program's line was longer than the limit and continues in the next one. `overwritten`: a state of a
    progress bar before its last; the next line of the stream replaces it.
    """

    time: str
    stream: Stream
    text: str
    partial: bool = False
    overwritten: bool = False


class LogEnd(Wire):
    """The end of a replica's log: the number of lines, and their digest. `cut`: the program wrote more, but the log
    quota was used up; these are the lines that its machine stored."""

    count: int
    sha256: str
    cut: bool = False


class LogChunk(Wire):
    """Lines `start`, `start + 1`, ... of one replica; `end` once there can be no more."""

    start: int
    lines: Many[LogLine]
    end: LogEnd | None = None


class LogReceipt(Wire):
    """`next` is the number of lines that the server has, which is the number of the next one."""

    next: int
    complete: bool


class LogDigest:
    """The digest of a log, line by line, and their number."""

    def __init__(self) -> None:
        self.count = 0
        self._sha = hashlib.sha256()

    def add(self, stream: Stream, text: str) -> None:
        self._sha.update(f"{stream} {text}\n".encode("utf-8", "surrogatepass"))
        self.count += 1

    def hexdigest(self) -> str:
        return self._sha.hexdigest()


def digest(lines: Iterable[LogLine]) -> str:
    """The digest of a whole log: SHA-256 over stream, text and newline of each line in order, in hex."""
    total = LogDigest()
    for line in lines:
        total.add(line.stream, line.text)
    return total.hexdigest()
