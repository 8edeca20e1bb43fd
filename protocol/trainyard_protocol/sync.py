"""Wire protocol between agent and server.

`POST /agent/v1/sync` has everything but log lines. The agent sends its capacity and the state of all its runs; the
answer lists every run that it should have, each with its target. The agent stops and deletes a run that is not listed.
Both messages are complete states, never differences, so each may be lost or repeated.

`POST /agent/v1/runs/{run}/replicas/{task}/logs` sends a `LogChunk` and is answered with a `LogReceipt`: the server
appends only lines that continue the stored ones, and returns their number; the agent continues there.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from functools import lru_cache
from itertools import groupby
from operator import itemgetter
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    FailFast,
    Field,
    PlainSerializer,
    PlainValidator,
    StringConstraints,
    field_serializer,
    model_validator,
)

from trainyard_protocol.errors import InvalidArgument
from trainyard_protocol.gcs import EMULATOR, without_secret
from trainyard_protocol.states import Reason, ReplicaState
from trainyard_protocol.training_input import TrainingInput, parse_training_input

NO_ROOM_AT_END = "When it ended, "
"""The beginning of the sentence about a full disk in the message of an exit: it may be why the program failed."""

AGENT_KEY = "X-Trainyard-Agent-Key"
"""The header with the key of the agent that calls. The agents' token only lets an agent join."""

Stream = Literal["stdout", "stderr"]
RuntimeName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9-]{0,31}$")]
"""The name of a runtime: "process", "docker", or one that this side does not know."""

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


def is_tpu(accelerator_type: str) -> bool:
    """Whether it is a type of TPU, such as TPU_V3."""
    return accelerator_type.upper().startswith("TPU_")


class Gpu(Wire):
    """`id` is the driver's (a UUID), or `tpu-0` for a core of a TPU; `type` is an accelerator type as the catalogue
    writes it."""

    id: str
    type: str
    memory_bytes: int = 0


class Pool(Wire):
    """Nodes of one shape in an engine, and what each of them can give to replicas. `accelerators_only`: they take no
    replica without accelerators."""

    nodes: int
    vcpus: int
    memory_bytes: int
    accelerator_type: str = ""
    accelerator_count: int = 0
    accelerators_only: bool = False


class Capacity(Wire):
    """The capacity of an agent for replicas, used or not: CPU numbers, bytes, devices. That of an engine has `pools` in
    place of CPU numbers and devices; `memory_bytes` is their sum."""

    cpus: Many[int]
    memory_bytes: int
    gpus: Many[Gpu] = ()
    pools: Many[Pool] = ()

    @classmethod
    def of_pools(cls, *pools: Pool) -> "Capacity":
        return cls(cpus=(), memory_bytes=sum(pool.nodes * pool.memory_bytes for pool in pools), pools=pools)

    @property
    def vcpus(self) -> int:
        return len(self.cpus) + sum(pool.nodes * pool.vcpus for pool in self.pools)

    @property
    def accelerators(self) -> Counter[str]:
        """Number of devices by type, in capitals."""
        counts = Counter(gpu.type.upper() for gpu in self.gpus)
        for pool in self.pools:
            if pool.accelerator_count:
                counts[pool.accelerator_type.upper()] += pool.nodes * pool.accelerator_count
        return counts


class RuntimeOffer(Wire):
    """A runtime of an agent. `replica_environment` is added to the environment of every replica there (such as
    STORAGE_EMULATOR_HOST, which is reported without its secret); it must not contain other secrets. `about` says on
    what it runs ("Docker engine 20.10.24"), `problem` why it starts nothing now. `retiring`: it ends the runs that it
    has, and never starts another; a `problem` then says why not."""

    name: RuntimeName
    replica_environment: Environment = {}
    about: str = ""
    problem: str = ""
    retiring: bool = False


PACKAGE_JOBS = frozenset({"process", "slurm"})
"""Runtimes for package jobs alone."""


def image_runtime(offers: Iterable[RuntimeOffer]) -> RuntimeOffer | None:
    """The runtime of jobs with an image: any that starts runs, except those for package jobs alone."""
    return next((offer for offer in offers if offer.name not in PACKAGE_JOBS and not offer.retiring), None)


def _reported(environment: dict[str, str]) -> dict[str, str]:
    return {name: without_secret(value) if name == EMULATOR else value for name, value in environment.items()}


class Disk(Wire):
    """A directory that an agent writes to. `free_bytes` of its file system change in steps of a tenth, so that reports
    change rarely. `problem` is why no run can start that needs it ("cannot be written (Read-only file system)"); ""
    while it has room."""

    path: str
    free_bytes: int = 0
    problem: str = ""


def no_room(disks: Iterable[Disk]) -> str:
    """The first directory without room, and its problem: "/data has less than 250 MB left"; "" if all have room."""
    return next((f"{disk.path} {disk.problem}" for disk in disks if disk.problem), "")


HOST, CLUSTER = "host", "cluster"
"""Kinds of agents: of one machine, or of an engine that spans hosts and goes on without its agent."""


class AgentInfo(Wire):
    """An agent. `agent_id` survives restarts. `kind` is HOST or CLUSTER.

    `capacity_mode`: `strict` places a gang only where it fits as asked; `fit` scales one down that is larger
    than the whole machine. `runtimes` has every runtime of the agent, all on the one `capacity`. `runtime` is that of
    package jobs, with its `replica_environment`; `runs_images`: a job with an image can start now. Agents before
    `runtimes` have `runtime` alone. `host` is the machine's host name. `in_flight`: its engine has a queue of its own,
    which decides what starts, and gets so many runs to choose from; 0: the server decides, by what is free. `disks`:
    the directories that it writes to; while one has no room, nothing is started there.
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
    kind: str = HOST
    host: str = ""
    in_flight: Annotated[int, Field(ge=0)] = 0
    disks: Many[Disk] = ()

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
    def no_processes(self) -> str:
        """The reason why package jobs may not run as processes there; "" if they may, or if nobody would ask."""
        offer = self.offer("process")
        return offer.problem if offer is not None and offer.retiring else ""

    @property
    def engine_problem(self) -> str:
        """The reason why its engine (of containers, or that spans hosts) starts nothing now; "" if it does, or is not
        expected to."""
        offer = image_runtime(self.runtimes) or self.offer(self.runtime)
        return "" if offer is None or offer.retiring else offer.problem


def _known_reason(value: object) -> object:
    return Reason.VANISHED if isinstance(value, str) and value not in Reason.__members__ else value


class ExitReport(Wire):
    """The end of a replica. A reason that this side does not know, of a newer agent, is VANISHED: a new run.

    `code` is the shell's exit code (128 + n for signal n); None if the program never ran or the code is unknown.
    `after_stop`: a stop had been requested before. `message` is a sentence for the user; of a program that failed, what
    follows says whom it ran as. `order` counts the ends of its run from 1, where the runtime's clock has whole seconds
    only; 0: `finished_at` is exact.
    """

    code: int | None
    reason: Annotated[Reason, BeforeValidator(_known_reason)]
    message: str
    finished_at: datetime
    after_stop: bool = False
    order: int = 0


class Stall(Wire):
    """A stalled replica: its step has not changed for too long, or beside one in the same run.

    `since` is the time of `step`, by its machine's clock. At the detection the step had not changed for `for_s`, of the
    allowed `limit_s`, without another sign of progress. `longest_s` is the longest time between two signs before.
    `silent`: no replica of the run has printed anything or used a CPU since; `step` is the last one, or 0.
    """

    step: int
    since: datetime
    limit_s: float
    for_s: float = 0.0
    longest_s: float = 0.0
    silent: bool = False


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
    runtime that the agent chose for it, None before (and from older agents); `runtime_reason` is why, where there was a
    choice ("the job brings its image"). `measurements`: of a trial, the last MAX_REPORTED in its metric file;
    `other_metrics`: the newest values of others in it by name, where it has none with the study's tag."""

    run_id: str
    replicas: Many[ReplicaReport]
    activity: str = ""
    runtime: RuntimeName | None = None
    runtime_reason: str = ""
    measurements: Many[TrialMeasurement] = ()
    other_metrics: dict[str, TrialMeasurement] = {}


class ServerAbout(Wire):
    """The answer of `GET /agent/v1/server`. `agent` is the name that the token gives its agent; "": it gives none."""

    version: str
    agent: str = ""


class PackageLinks(Wire):
    """The answer of `GET /agent/v1/runs/{run}/packages`: the paths at which replicas of the run get its staged packages
    from the server, without a token, by URI. They are secrets, and valid until the run ends."""

    paths: dict[str, str] = Field(repr=False)


class SyncRequest(Wire):
    """`wait_s` is how long the server may hold an unchanged answer.

    `seen` is the `version` of the last answer that the agent applied; the server answers at once with another one.
    """

    agent: AgentInfo
    runs: Many[RunReport]
    wait_s: float = 0.0
    seen: str = ""


class PodToleration(Wire):
    """Taints of nodes on which a pod may run; as in Kubernetes, "" is any key or effect."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""
    toleration_seconds: int | None = None


class PodSettings(Wire):
    """Settings of a replica's pod by the site. `accelerator_resource` is what a cluster calls its accelerators;
    `run_as_user` None: the image's own user."""

    accelerator_resource: str = "nvidia.com/gpu"
    node_selector: dict[str, str] = {}
    tolerations: Many[PodToleration] = ()
    priority_class: str = ""
    image_pull_secrets: Many[str] = ()
    run_as_user: int | None = None
    runtime_class: str = ""


class ReplicaOrder(Wire):
    """The resources of one replica: amounts, and on a machine CPU numbers and device ids. CPUs are shared only within a
    run. Servers of before amounts send 0 vCPU and no accelerators. `pod` is for clusters alone."""

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


class TrialOrder(Wire):
    """The study as a run is told that is its trial: the id of the study's job, the trial's number, the metric's tag,
    and `hyperparameters` as programs see them, with snake_case keys."""

    study: str
    number: int
    metric_tag: str
    hyperparameters: dict[str, Any]


class RunOrder(Wire):
    """A run that the agent should have.

    `training_input` is canonical (camelCase) on the wire. Where this side cannot parse it, `unreadable` is the error
    message and `training_input` is empty. `grace_s` is the time from SIGTERM to SIGKILL. Without `stall` no stall is
    detected. `log_quota_bytes` limits the stored log of one replica on its machine; 0 is no limit. `job_dir` is the
    job's directory where its training input has no jobDir; "" if it has none. `owner` submitted the job; "" if unknown.
    `priority` is the job's, for an engine with a queue of its own.
    `trial` is set for a trial of a study. `peers` are addresses by task that the cluster has beside those of this run's
    replicas: of the gang, for an evaluator that is started again alone. `storage_token` is for calls of the server's
    storage while the run lives; "" without a storage.
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
    storage_token: str = Field(default="", repr=False)
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


class LogLine(NamedTuple):
    """One line without its newline. `time` is RFC 3339, when the agent's side read it.

    `partial`: the program's line was longer than the limit and continues in the next one. `overwritten`: a state of a
    progress bar before its last; the next line of the stream replaces it.
    """

    time: str
    stream: Stream
    text: str
    partial: bool = False
    overwritten: bool = False

    @classmethod
    def parse(cls, value: object) -> "LogLine":
        """The line in a JSON object. Raises ValidationError."""
        return cls(**_LineFields.model_validate(value).model_dump())


class _LineFields(Wire):
    """The fields of a LogLine in a message."""

    time: str
    stream: Stream
    text: str
    partial: bool = False
    overwritten: bool = False


def _log_line(value: object) -> LogLine:
    return value if isinstance(value, LogLine) else LogLine.parse(value)


class LogBlock(Wire):
    """Lines of one stream with the same time, of one kind. Most lines are written together with others."""

    time: str
    stream: Stream
    texts: Many[str]
    partial: bool = False
    overwritten: bool = False

    @classmethod
    def of(cls, lines: Iterable[LogLine]) -> "tuple[LogBlock, ...]":
        blocks = groupby(lines, itemgetter(0, 1, 3, 4))
        return tuple(
            cls(
                time=time,
                stream=stream,
                texts=tuple(map(itemgetter(2), some)),
                partial=part,
                overwritten=over,
            )
            for (time, stream, part, over), some in blocks
        )

    @property
    def lines(self) -> Iterator[LogLine]:
        time, stream, partial, overwritten = self.time, self.stream, self.partial, self.overwritten
        return (LogLine(time, stream, text, partial, overwritten) for text in self.texts)


class LogEnd(Wire):
    """The end of a replica's log: the number of lines, and their digest: `sha256` of them all, "" where the agent has
    not read them all; `chain` as of LogDigest, "" of older agents. `cut`: the program wrote more, but the log quota was
    used up; these are the lines that its machine stored. `missing`: lines that its machine lost; None: any number
    of the last ones, since what stored them was killed or removed."""

    count: int
    sha256: str
    cut: bool = False
    chain: str = ""
    missing: int | None = 0


class LogGap(Wire):
    """Times between which lines of a log may be missing: of the lines before and after, "" where there is none."""

    after: str
    before: str


class LogPosition(Wire):
    """The end of a log so far: the number of lines, their `chain`, the time of the last one, and how many of the last
    lines have that time. It is all that an agent needs to go on that has no older lines."""

    next: int = 0
    chain: str = ""
    last_time: str = ""
    same_time: int = 0


class LogChunk(Wire):
    """Lines `start`, `start + 1`, ... of one replica, as `lines` or as `blocks`; `end` once there can be no more.
    `gap`: lines may be missing before the first of these. `resume` asks for the position."""

    start: int
    lines: Many[Annotated[LogLine, PlainValidator(_log_line), PlainSerializer(LogLine._asdict)]] = ()
    blocks: Many[LogBlock] = ()
    end: LogEnd | None = None
    gap: LogGap | None = None
    resume: bool = False


class LogReceipt(Wire):
    """`next` is the number of lines that the server has, which is the number of the next one. `position` is for a chunk
    that asks for it; older servers leave it out. `accepts_blocks`: chunks may have
    blocks, unlike those for older servers."""

    next: int
    complete: bool
    position: LogPosition | None = None
    accepts_blocks: bool = False


class LogDigest:
    """The digest of a log, line by line, and their number.

    `chain` is h(n) = SHA-256(h(n-1), line n) in hex, and "" before the first line: it goes on from any line. It takes
    most of the time: None leaves it out.
    """

    def __init__(self, count: int = 0, chain: str | None = "") -> None:
        self.count = count
        self.chain = chain
        self._sha = hashlib.sha256() if count == 0 else None

    def add(self, stream: Stream, text: str) -> None:
        self.extend(((stream, text),))

    def extend(self, lines: Iterable[tuple[Stream, str]]) -> None:
        """Add lines, as pairs of stream and text."""
        texts = [f"{stream} {text}\n" for stream, text in lines]
        if self.chain is not None:
            for text in texts:
                line = text.encode("utf-8", "surrogatepass")
                self.chain = hashlib.sha256(self.chain.encode() + line).hexdigest()
        if self._sha is not None:
            self._sha.update("".join(texts).encode("utf-8", "surrogatepass"))
        self.count += len(texts)

    def copy(self) -> "LogDigest":
        other = LogDigest(self.count, self.chain)
        other._sha = None if self._sha is None else self._sha.copy()
        return other

    def hexdigest(self) -> str:
        """The digest of all lines; "" if it does not go back to the first."""
        return "" if self._sha is None else self._sha.hexdigest()


def digest(lines: Iterable[LogLine]) -> str:
    """The digest of a whole log: SHA-256 over stream, text and newline of each line in order, in hex."""
    total = LogDigest(chain=None)
    total.extend((line.stream, line.text) for line in lines)
    return total.hexdigest()
