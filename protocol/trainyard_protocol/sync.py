"""The wire between agent and server.

`POST /agent/v1/sync` carries everything but log lines: the agent sends what it is, what it has and how
everything it runs stands; the answer lists every run that it should have, each with its target. A run
that the answer does not list is to be stopped and forgotten. Both messages are whole states, never
differences, so any of them may be lost, repeated or answered twice.

`POST /agent/v1/runs/{run}/replicas/{task}/logs` takes a `LogChunk` and answers with a `LogReceipt`:
the server takes only what continues what it has, and says what it has; the agent goes on from there.
"""

import hashlib
from collections.abc import Iterable
from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from trainyard_protocol.states import Reason, ReplicaState

Stream = Literal["stdout", "stderr"]
RuntimeName = Literal["process", "docker", "fake"]


class Wire(BaseModel):
    """Unknown fields are ignored, so that an older side can talk to a newer one."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Gpu(Wire):
    """`id` is the driver's (a UUID); `type` is an accelerator type as the catalogue writes it."""

    id: str
    type: str
    memory_bytes: int = 0


class Capacity(Wire):
    """What an agent may give to replicas: CPU numbers, bytes, devices. All of them, used or not."""

    cpus: tuple[int, ...]
    memory_bytes: int
    gpus: tuple[Gpu, ...] = ()


class AgentInfo(Wire):
    """Who the agent is. `agent_id` survives restarts.

    `capacity_mode`: `strict` places a gang only where it fits as asked; `fit` scales one down that is larger
    than the whole machine. `replica_environment` is what the agent adds to every replica's environment
    (such as STORAGE_EMULATOR_HOST); no secret may stand in it.
    """

    agent_id: str
    name: str
    version: str
    runtime: RuntimeName
    capacity_mode: Literal["strict", "fit"]
    runs_images: bool
    capacity: Capacity
    replica_environment: dict[str, str] = {}


class ExitReport(Wire):
    """How a replica ended.

    `code` is what a shell would see (128 + n for signal n); None where the program never ran or nobody
    knows. `after_stop`: we had already told it to stop. `message` is one sentence for the user.
    """

    code: int | None
    reason: Reason
    message: str
    finished_at: datetime
    after_stop: bool = False


class Stall(Wire):
    """A replica's step stands still, in a run of which one has done so for longer than it may.

    `since` is when it reached `step`, by its machine's clock. When this was found, it had stood there for `for_s`,
    of the `limit_s` that it may, in which its agent saw no other sign of it either; `longest_s` is the longest that
    it had taken before from one sign to the next.
    """

    step: int
    since: datetime
    limit_s: float
    for_s: float = 0.0
    longest_s: float = 0.0


class ReplicaReport(Wire):
    """`address` is `host:port` once the replica has been placed, "" before. `stacks` is what the program was doing
    when a replica of its run stood still (`stall` says which); "" while none has, or where it cannot be told."""

    task: str
    state: ReplicaState
    address: str = ""
    started_at: datetime | None = None
    exit: ExitReport | None = None
    stall: Stall | None = None
    stacks: str = ""


class RunReport(Wire):
    """`activity` says what a run that is not up yet is doing ("installing trainer-0.0.0.tar.gz")."""

    run_id: str
    replicas: tuple[ReplicaReport, ...]
    activity: str = ""


class SyncRequest(Wire):
    """`wait_s`: how long the server may hold the answer while it has nothing new to say.

    `seen` is the `version` of the last answer that the agent acted on; the server answers at once when
    it has another one.
    """

    agent: AgentInfo
    runs: tuple[RunReport, ...]
    wait_s: float = 0.0
    seen: str = ""


class ReplicaOrder(Wire):
    """What one replica may use: CPU numbers, device ids, bytes. CPUs are shared only within a run."""

    task: str
    machine_type: str
    cpus: tuple[int, ...]
    memory_bytes: int
    gpus: tuple[str, ...] = ()


class StallPolicy(Wire):
    """When a replica that reports its step counts as stalled: after `limit_s` without a sign of it, where that is
    set; else after `factor` times the longest that it has lately taken from one to the next, and never before
    `least_s`."""

    least_s: float
    factor: float
    limit_s: float | None = None


class RunOrder(Wire):
    """One run that the agent should have. `training_input` is canonical (camelCase); `grace_s` is the
    time between SIGTERM and SIGKILL; `stall` None: nobody watches the steps; `log_quota_bytes` bounds what is kept
    of one replica's log on its machine, 0: nothing does."""

    run_id: str
    number: int
    target: Literal["run", "stop"]
    project: str
    job_id: str
    training_input: dict[str, Any]
    replicas: tuple[ReplicaOrder, ...]
    grace_s: float
    stall: StallPolicy | None = None
    log_quota_bytes: int = 0


class SyncResponse(Wire):
    """`lease_s`: an agent that has heard nothing for so long stops its replicas; None means never."""

    version: str
    lease_s: float | None
    runs: tuple[RunOrder, ...]


class LogLine(Wire):
    """One line without its newline. `time` is RFC 3339, when the agent's side read it.

    `partial`: the program's line was longer than the limit and goes on in the next one.
    """

    time: str
    stream: Stream
    text: str
    partial: bool = False


class LogEnd(Wire):
    """The last word on a replica's log: how many lines, and their digest. `cut`: the program wrote more, but the
    log quota was used up: these are the lines that its machine kept."""

    count: int
    sha256: str
    cut: bool = False


class LogChunk(Wire):
    """Lines `start`, `start + 1`, ... of one replica; `end` once there can be no more."""

    start: int
    lines: tuple[LogLine, ...]
    end: LogEnd | None = None


class LogReceipt(Wire):
    """`next` is the number of lines that the server has, so the number of the next one it takes."""

    next: int
    complete: bool


class LogDigest:
    """The digest of a log whose lines come one after the other, and how many there were."""

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
