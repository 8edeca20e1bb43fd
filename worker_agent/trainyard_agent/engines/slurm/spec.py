"""Translation between Slurm's terms and the contract's. Pure."""

import math
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter

from trainyard_agent.engines.slurm import setup
from trainyard_agent.engines.slurm.run_files import SlurmJobEnd
from trainyard_agent.staging.image_errors import verdict
from trainyard_protocol.fields import seconds
from trainyard_protocol.job.keys.engine_options import SlurmOptions
from trainyard_protocol.states import Reason
from trainyard_protocol.wire.sync import ReplicaOrder, RunOrder

ENDED = frozenset(
    (
        *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL"),
        *("OUT_OF_MEMORY", "PREEMPTED", "TIMEOUT"),
    )
)
"""States of a job that has ended."""

BY_ITSELF = ("COMPLETED", "FAILED")
"""States of a job that Slurm has not ended, as far as it says."""

TIMEOUT = "TIMEOUT"
TAKEN = frozenset(("PREEMPTED", "NODE_FAIL", "BOOT_FAIL", TIMEOUT, "DEADLINE"))
"""Those that Slurm chose itself: they explain an end even where a stop came later."""

_TELLING = (*sorted(TAKEN), "CANCELLED", "OUT_OF_MEMORY")

COMPLETING = "COMPLETING"
"""Of a job whose processes have ended, or are being killed, and whose nodes run the site's epilog."""

GONE = "GONE"
"""Our word for a job that Slurm no longer knows."""

_MEBIBYTE = 1 << 20
_LONGEST_GRACE_S = 65_535

_REASONS: Mapping[str, tuple[Reason, str]] = {
    "PREEMPTED": (Reason.PREEMPTED, "Slurm took its nodes away for other work"),
    "NODE_FAIL": (Reason.HOST_LOST, "{nodes} stopped answering, and Slurm ended the job"),
    "BOOT_FAIL": (Reason.HOST_LOST, "{nodes} did not boot"),
    TIMEOUT: (
        Reason.TIME_LIMIT,
        "Slurm ended its job at the time limit of {limit} in the partition {partition}. For a longer one, start the "
        "agent with another --slurm-partition, or with SBATCH_TIMELIMIT if the partition has a higher MaxTime",
    ),
    "DEADLINE": (Reason.TIME_LIMIT, "Its job reached its deadline in Slurm"),
    "OUT_OF_MEMORY": (Reason.OUT_OF_MEMORY, "Slurm ended it at its memory limit"),
    "CANCELLED": (Reason.KILLED_BY_SIGNAL, "Its job was cancelled in Slurm, not by Trainyard"),
    GONE: (Reason.VANISHED, "Slurm no longer knows its job"),
}

_NEVER = {
    "AccountNotAllowed": "its partition does not allow the account",
    "BadConstraints": "no node can ever hold it",
    "InvalidAccount": "there is no such account",
    "InvalidQOS": "there is no such QOS",
    "PartitionTimeLimit": "its time limit is longer than its partition allows",
    "QOSNotAllowed": "its partition does not allow the QOS",
}
"""Reasons of jobs that wait until somebody changes them, or the cluster."""

_REFUSED = re.compile(
    r"invalid (?:account|feature|generic|license|node|partition|qos|reservation|user|wckey)|specification invalid"
    r"|(?:time limit|reservation) is invalid|denied|not permitted|more processors requested|not in this partition"
    r"|node configuration is not available|can not be satisfied|memory required by task|no partition specified"
    r"|unrecognized option",
    re.IGNORECASE,
)
_PASSING = re.compile(
    r"unable to contact|did not answer|timed out|connection|temporarily|not available now|inactive or drain|is down"
    r"|down, drained or reserved|accounting/qos policy|standby|zero bytes|nodes are busy",
    re.IGNORECASE,
)
_RESOLUTION_S = 60
"""Slurm sends the signal before a time limit up to so long earlier (sbatch, `--signal`)."""

_STARTS_S = 240
"""The time from the start of a job in Slurm, when its time limit begins, to that of its programs, for the server."""

_PULL_S = 1800
"""The same for the pull of images."""

_WAITS: Mapping[str, str] = {
    "None": "it has not looked at the job yet",
    "Priority": "jobs of a higher priority come first",
    "Resources": "no nodes are free for it yet",
    "ReqNodeNotAvail": "the nodes that it takes are down or reserved",
    "PartitionDown": "the partition is closed",
    "PartitionInactive": "the partition is closed",
    "PartitionNodeLimit": "the partition has too few nodes for it",
    "JobHeldAdmin": "an administrator holds it",
    "JobHeldUser": "it is held",
    "Licenses": "a licence is not free",
    "Reservation": "its reservation has not begun",
}


@dataclass(frozen=True, slots=True)
class SlurmDefaults:
    """The choices of the agent's settings for jobs; "" is the site's."""

    partition: str = ""
    account: str = ""
    qos: str = ""


def job_name(run_id: str) -> str:
    return f"ty-{run_id}"


def run_of_job(name: str) -> str:
    """The run of a job with this name; "" if it is none of ours."""
    match = re.fullmatch(r"ty-([0-9a-f]{32})", name)
    return match[1] if match else ""


def placeholder(run_id: str, task: str) -> str:
    """The address of a task before it has a node, `HOST:PORT`. Its rank puts the real ones in its place."""
    return f"@{task}.{run_id}.host@:@{task}.{run_id}.port@"


def parts(replicas: Sequence[ReplicaOrder]) -> list[list[ReplicaOrder]]:
    """The replicas in their order, those of one machine type and accelerators together: the parts of a heterogeneous
    job, whose tasks Slurm numbers in this order."""
    shape = attrgetter("vcpus", "memory_bytes", "accelerator_type", "accelerator_count")
    return [list(part) for _, part in groupby(replicas, shape)]


def arguments(
    order: RunOrder, directory: str, gres: Callable[[str], str], agents: SlurmDefaults, longest_s: float = math.inf
) -> list[str]:
    """The arguments of sbatch. `gres`: what Slurm calls an accelerator type; `agents`: what the agent's settings choose
    where the job does not; `longest_s`: the time limit of the partition."""
    asked = order.training_input.engine_options.slurm
    account, qos = asked.account or agents.account, asked.qos or agents.qos
    of_each_part = [
        f"--job-name={job_name(order.run_id)}",
        f"--comment={order.project}/{order.job_id}",
        *([f"--partition={agents.partition}"] if agents.partition else []),
        *([f"--account={account}"] if account else []),
        *([f"--qos={qos}"] if qos else []),
        *([f"--constraint={asked.constraint}"] if asked.constraint else []),
        *([f"--reservation={asked.reservation}"] if asked.reservation else []),
        *(["--exclusive"] if asked.exclusive else []),
        *_time_limit(order, longest_s),
        "--no-requeue",  # a run never starts over
        f"--signal=TERM@{min(_LONGEST_GRACE_S, max(1, round(order.grace_s)))}",  # before a time limit
        f"--chdir={directory}",
        f"--output={directory}/slurm.out",
        "--open-mode=append",
    ]
    return _separated([*of_each_part, *_resources(part, gres, asked)] for part in parts(order.replicas))


def _time_limit(order: RunOrder, longest_s: float) -> list[str]:
    """The time limit of a job that has a maxRunningTime of its own, by which Slurm's backfill finds room for it. The
    server, which counts from a later time, stops the job first."""
    scheduling = order.training_input.scheduling
    if scheduling is None or "max_running_time" not in scheduling.model_fields_set:
        return []
    wanted_s = seconds(scheduling.max_running_time) + order.grace_s + _RESOLUTION_S + _STARTS_S
    wanted_s += _PULL_S if order.training_input.image_uri else 0
    minutes = math.floor(longest_s / 60) if longest_s < wanted_s else math.ceil(wanted_s / 60)
    return [f"--time={max(1, minutes)}"]


def script(
    order: RunOrder, gres: Callable[[str], str], program: Sequence[str], directory: str, before: Sequence[str] = ()
) -> str:
    """The batch script: the command `before`, if any, and one task of `program` for each replica, none of which ends
    another. With a setup it is bash."""
    asked = order.training_input.engine_options.slurm
    never_ends = ["--mpi=none", "--kill-on-bad-exit=0", "--wait=0", "--input=none"]
    step = _separated([*never_ends, *_resources(part, gres, asked), *program] for part in parts(order.replicas))
    head = f"#!/bin/bash\n{setup.script(asked.setup, directory)}\n" if asked.setup else "#!/bin/sh\n"
    first = f"{shlex.join(before)} || exit 1\n" if before else ""
    return f"{head}{first}exec {shlex.join(['srun', *step])}\n"


def step_beside(
    job: str, replicas: Sequence[ReplicaOrder], task: str, node: str, program: Sequence[str], *, on_terminal: bool
) -> list[str]:
    """The command of a further step of a job, which shares what its replica on that node has."""
    several = parts(replicas)
    part = next(number for number, part in enumerate(several) if any(replica.task == task for replica in part))
    return [
        *("srun", "--quiet", "--overlap", f"--jobid={job}", "--nodes=1", "--ntasks=1", f"--nodelist={node}"),
        *([f"--het-group={part}"] if len(several) > 1 else []),
        *("--mpi=none", "--unbuffered"),
        *(["--pty"] if on_terminal else []),
        *program,
    ]


def _separated(several: Iterable[list[str]]) -> list[str]:
    first, *others = several
    return [*first, *(word for part in others for word in (":", *part))]


def _resources(part: Sequence[ReplicaOrder], gres: Callable[[str], str], asked: SlurmOptions) -> list[str]:
    """The tasks and the resources of each. Slurm has no memory of a task, so it is that of its CPUs; on a whole node,
    whose CPUs are all the job's, it is the node's."""
    replica = part[0]
    cpus = max(1, replica.vcpus)
    memory = -(-replica.memory_bytes // (cpus * _MEBIBYTE))
    kind, count = replica.accelerator_type, replica.accelerator_count
    gpus = [f"--gpus-per-task={gres(kind)}:{count}"] if count else []
    of_memory = "--mem=0" if asked.exclusive else f"--mem-per-cpu={memory}M"
    return [f"--ntasks={len(part)}", f"--cpus-per-task={cpus}", of_memory, *gpus]


def telling(state: str) -> int:
    """A rank of the states of a job's parts: the lowest is that of the job, which has ended once all parts have."""
    if state not in ENDED:
        return -1
    return _TELLING.index(state) if state in _TELLING else len(_TELLING)


def waits(state: str, reason: str) -> str:
    """The reason why a job in this state has not started, for people; "" if it has."""
    if state in ("CONFIGURING", "RUNNING", COMPLETING):
        return "Slurm prepares its nodes" if state == "CONFIGURING" else ""
    if state == "PENDING":
        words = _WAITS.get(reason) or _NEVER.get(reason) or f"a limit of the site holds it back: {reason}"
        return f"in Slurm's queue: {words} ({reason})"
    return f"its job in Slurm is {state}"


def refusal(words: str) -> Reason:
    """The reason of a job that sbatch did not take, by its words. Those that are not known may pass or not."""
    if _REFUSED.search(words):
        return Reason.REFUSED
    return Reason.GIVEN_BACK if _PASSING.search(words) else Reason.HOST_FAILED


def failed_pull(image: str, words: str, node: str, program: str) -> tuple[Reason, str]:
    """The reason and message of an image that `program` could not pull; `words`: "" where there is no such program."""
    if not words:
        why = f"there is no program {program} on {node or 'its node'}, by which this agent runs images (--slurm-images)"
        return Reason.HOST_FAILED, f"{image}: {why}."
    cause, message = verdict(image, words, f"{program} registry login", "the disk for images")
    return Reason(cause.value), message


def will_never_start(state: str, reason: str) -> bool:
    return state == "PENDING" and reason in _NEVER


def state_of_end(left: str, grace_s: float, was_preempted: bool) -> str:
    """The state of a job that ended by itself of Slurm's SIGTERM: before a preemption whose grace it did not use up, or
    before its time limit, which is so long before it as the grace; "" for any other. Slurm says PREEMPTED or TIMEOUT of
    those alone that it has to kill."""
    if was_preempted:
        return "PREEMPTED"
    left_s = duration_s(left)
    return TIMEOUT if left_s is not None and left_s <= grace_s + _RESOLUTION_S else ""


def duration_s(duration: str) -> float | None:
    """Parse Slurm's `DAYS-HOURS:MINUTES:SECONDS`, of which only the last two are always there; None for its words.
    INVALID: it took longer."""
    if duration == "INVALID":
        return 0.0
    match = re.fullmatch(r"(?:(?:(\d+)-)?(\d+):)?(\d+):(\d+)", duration)
    if match is None:
        return None
    days, hours, minutes, rest = (int(part or 0) for part in match.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + rest)


def end(ended: SlurmJobEnd, job: str) -> tuple[Reason, str]:
    """The reason and message for a replica that Slurm ended, or that has no end of its own, by the end of its job."""
    state = ended.state
    if state in _NEVER:
        return Reason.REFUSED, f"Slurm would never start its job: {_NEVER[state]} (job {job}, {state})."
    reason, words = _REASONS.get(state, (Reason.VANISHED, "It was gone when its job in Slurm ended"))
    words = words.format(nodes=_nodes(ended), limit=ended.limit or "?", partition=ended.partition or "?")
    return reason, f"{words} (job {job}, {state})."


def _nodes(ended: SlurmJobEnd) -> str:
    """The nodes that a job may have lost, as the subject of a sentence."""
    if len(ended.lost_nodes) == 1:
        return f"Node {ended.lost_nodes[0]} of its job"
    nodes = " and ".join(ended.lost_nodes) or ended.nodes
    return f"One of the nodes {nodes} of its job" if nodes else "A node of its job"
