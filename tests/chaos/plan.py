"""The plan of a history, drawn from a seed: jobs with their programs, and operations with their times. Pure.

A plan is the same whenever it is drawn from the same seed for the same runtime. What it meets is not: processes run
as fast as the machine lets them.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Runtime = Literal["process", "docker", "kubernetes"]
RUNTIMES: tuple[Runtime, ...] = ("process", "docker", "kubernetes")
Script = Mapping[str, list[list[Any]]]
"""The steps of the program (see `program.py`) by the type of its task."""


@dataclass(frozen=True, slots=True)
class PlannedJob:
    """`endless`: its programs do not end by themselves, so it is cancelled when everything is healed."""

    name: str
    at: float
    workers: int
    script: Script
    endless: bool


@dataclass(frozen=True, slots=True)
class Operation:
    """`kind` is a method of the history, its replicas or its cluster (`do_KIND`), and `values` are its arguments."""

    at: float
    kind: str
    values: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        words = [f"{self.at:6.2f} s  {self.kind}", *(f"{k}={v}" for k, v in self.values.items())]
        return " ".join(words)


@dataclass(frozen=True, slots=True)
class Plan:
    seed: int
    runtime: Runtime
    agents: int
    servers: int
    jobs: tuple[PlannedJob, ...]
    operations: tuple[Operation, ...]
    length: float
    spreads: bool = False
    """Whether gangs may have parts on several agents."""

    zone_min: int = 0
    """Minutes by which the clocks of a cluster's nodes are east of UTC."""

    def in_container(self, job: PlannedJob) -> bool:
        """Whether the job is in a container. With an engine, every second job is a package: its processes run beside
        the containers of the others."""
        return self.runtime == "kubernetes" or (self.runtime == "docker" and self.jobs.index(job) % 2 == 0)

    def __str__(self) -> str:
        head = f"seed {self.seed}: {self.runtime}, agents={self.agents}, servers={self.servers}"
        head += ", gangs over agents" if self.spreads else ""
        head += f", zone {self.zone_min:+d} min" if self.zone_min else ""
        jobs = [
            f"{job.at:6.2f} s  submit {job.name} workers={job.workers} {'endless ' * job.endless}"
            + " ".join(f"{task}={steps}" for task, steps in job.script.items())
            for job in self.jobs
        ]
        return "\n".join([head, *sorted([*jobs, *map(str, self.operations)])])


START_DEADLINE_S = 2.0
"""Of the agent of a cluster."""

SCHEDULER_LEASE_S = 2.0
"""Seconds for which a server may schedule without renewing that."""

_ZONES = (0, 330, 840, -210, -720)
_FULL = 0.4
"""Share of histories in which the cluster is full for several start deadlines."""

MAX_WIDTH = 120
"""Of a line that a burst prints."""

WEIGHTS: Mapping[str, float] = {
    "cancel": 3.0,
    "kill_server": 2.0,
    "kill_agent": 2.0,
    "end_server": 0.7,
    "end_agent": 0.7,
    "pause_server": 1.0,
    "pause_agent": 1.0,
    "freeze_agent": 0.3,  # for longer than its lease
    "kill_watchdog": 0.7,
    "kill_program": 2.0,
    "pause_program": 0.7,
    "kill_supervisor": 1.0,  # a container that is removed, where replicas are containers
    "disturb": 3.0,
    "cut": 1.5,
    "jump": 1.0,
}

AGENT_KINDS = frozenset(
    {"kill_agent", "end_agent", "pause_agent", "freeze_agent", "lose_agent", "leave_agent", "fill_disk"}
)
"""Operations that keep an agent from what it does for its replicas."""

CLUSTER_WEIGHTS: Mapping[str, float] = {
    "cancel": 3.0,
    "kill_server": 1.0,
    "end_server": 0.5,
    "pause_server": 0.5,
    "kill_agent": 1.0,
    "end_agent": 0.7,
    "pause_agent": 1.0,
    "trap_agent": 4.0,  # killed at one of its requests, before or after it is done
    "kill_program": 1.5,
    "pause_program": 0.5,
    "delete_pod": 1.5,
    "remove_pod": 0.7,  # by force, and without its finalizer
    "preempt_pod": 1.0,
    "pause_kubelet": 1.5,
    "disturb_cluster": 4.0,
    "cut_cluster": 2.0,
    "disturb": 1.0,
    "cut": 0.7,
    "jump": 0.7,
}
"""Where the replicas are pods."""


def draw(seed: int, runtime: Runtime, most_servers: int = 1) -> Plan:
    random_ = random.Random(f"{runtime} {seed}")
    slow = {"process": 1.0, "docker": 2.0, "kubernetes": 2.0}[runtime]  # containers take their time to come up
    weights = CLUSTER_WEIGHTS if runtime == "kubernetes" else WEIGHTS
    crowd = _Crowd(
        jobs=random_.choice([2, 3, 3]),
        agents=random_.choice([1, 1, 2]) if runtime != "kubernetes" else 1,  # of a namespace
        servers=min(most_servers, random_.choice([1, 2])),
        slow=slow,
    )
    length = 1.6 * slow
    jobs = tuple(_job(random_, number, length) for number in range(crowd.jobs))
    kinds = random_.choices(list(weights), list(weights.values()), k=random_.randint(3, 7))
    operations = [
        Operation(round(random_.uniform(0.1, length), 2), kind, _DRAWS[kind](random_, crowd)) for kind in kinds
    ]
    own = random.Random(f"disk {runtime} {seed}")  # so that older seeds draw what they drew besides
    if runtime == "process" and crowd.agents > 1 and own.random() < 0.5:
        values = {"agent": own.randrange(crowd.agents), "for_s": round(own.uniform(0.5, 2.5), 2)}
        operations.append(Operation(round(own.uniform(0.0, length), 2), "fill_disk", values))
    zone_min = 0
    if runtime == "kubernetes":
        own = random.Random(f"cluster {seed}")  # so that older seeds draw what they drew
        zone_min = own.choice(_ZONES)
        if own.random() < _FULL:
            values = {"for_s": round(own.uniform(2.2, 4.2) * START_DEADLINE_S, 2)}
            operations.append(Operation(round(own.uniform(0, length * 0.6), 2), "fill_cluster", values))
    own = random.Random(f"lease {seed}")  # so that older seeds draw what they drew
    if crowd.agents > 1 and own.random() < 0.4:
        jobs += (PlannedJob(f"job_{len(jobs)}", 0.0, own.choice([0, 1]), _talkative(400, 0.06), True),)
        at, how = round(own.uniform(0.5, length), 2), own.choice(["refuses", "swallows"])
        operations.append(Operation(at, "lose_agent", {"job": len(jobs) - 1, "how": how}))
    elif runtime == "process" and any(operation.kind == "kill_supervisor" for operation in operations):
        jobs += (PlannedJob(f"job_{len(jobs)}", 0.0, 1, _talkative(60, 0.02), False),)
    own = random.Random(f"frozen {seed}")  # so that older seeds draw what they drew
    if crowd.servers > 1 and own.random() < 0.6:
        frozen = {"server": own.randrange(2), "for_s": round(own.uniform(1.2, 2.5) * SCHEDULER_LEASE_S, 2)}
        operations.append(Operation(round(own.uniform(0.0, length), 2), "freeze_server", frozen))
    own = random.Random(f"spread {seed}")  # so that older seeds draw what they drew
    spreads = runtime == "process" and crowd.agents > 1 and own.random() < 0.6
    agents, moves = _members(seed, crowd.agents, length) if spreads else (crowd.agents, ())
    operations += moves
    return Plan(
        seed=seed,
        runtime=runtime,
        agents=agents,
        spreads=spreads,
        servers=crowd.servers,
        jobs=jobs,
        operations=tuple(sorted(operations, key=lambda operation: operation.at)),
        length=length,
        zone_min=zone_min,
    )


def _members(seed: int, agents: int, length: float) -> tuple[int, tuple[Operation, ...]]:
    """The number of agents with a third one that joins, and the moves: it joins, and another one leaves for a while."""
    own = random.Random(f"members {seed}")  # so that older seeds draw what they drew
    moves = []
    if own.random() < 0.6:
        agents += 1
        moves.append(Operation(round(own.uniform(0.0, length), 2), "join_agent", {"agent": agents - 1}))
    if own.random() < 0.6:
        values = {"agent": own.randrange(2), "for_s": round(own.uniform(1.0, 9.0), 2)}
        moves.append(Operation(round(own.uniform(0.3, length), 2), "leave_agent", values))
    return agents, tuple(moves)


STAGES = ("submitted", "prepared", "born", "speaking", "ended", "over")
"""Of the life of a job: accepted; placed; its first program lives; has said something; the primary has ended; the
whole job has."""


def sweep(seed: int, runtime: Runtime, each: int) -> Plan:
    """Alike jobs, `each` cancelled in every stage of its life, or a little later."""
    random_ = random.Random(f"sweep {runtime} {seed}")
    script: Script = {
        "master": [["polite", 200, 0], ["say", "stdout", 8, 0.05], ["burst", "stderr", 300, 0], ["exit", 0]],
        "worker": [["deaf"], ["say", "stdout", 20, 0.05], ["tail", "stderr"], ["exit", 0]],
    }
    stages = [stage for stage in STAGES for _ in range(each)]
    random_.shuffle(stages)
    jobs = tuple(PlannedJob(f"job_{n}", 0.0, 1, script, False) for n in range(len(stages)))
    cancels = tuple(
        Operation(0.0, "cancel", {"job": n, "times": 1, "when": stage, "after_s": round(0.3 * random_.random(), 2)})
        for n, stage in enumerate(stages)
    )
    return Plan(seed, runtime, 1, 1, jobs, cancels, 0.0)


def full_disk(seed: int) -> Plan:
    """Jobs that all succeed, one after the other on two agents. The disk of the one that is chosen first is full while
    they come."""
    random_ = random.Random(f"full disk {seed}")
    jobs = tuple(
        PlannedJob(
            f"job_{number}",
            round(1.5 + 0.25 * number, 2),
            0,
            {"master": [["say", "stdout", random_.randint(1, 8), 0.05], ["exit", 0]]},
            False,
        )
        for number in range(6)
    )
    fill = Operation(
        round(random_.uniform(1.4, 2.2), 2), "fill_disk", {"agent": 0, "for_s": round(random_.uniform(3.0, 5.0), 2)}
    )
    return Plan(seed, "process", 2, 1, jobs, (fill,), 5.0)


def restored(seed: int) -> Plan:
    """Jobs that succeed by themselves; a backup while they run, and some time later a restore of it, where `elsewhere`
    without the machines of before."""
    random_ = random.Random(f"restored {seed}")
    agents = random_.choice([1, 2, 3])
    jobs = tuple(
        PlannedJob(f"job_{n}", round(random_.uniform(0.0, 1.0), 2), random_.choice([0, 1, 1]), _lasting(random_), False)
        for n in range(random_.randint(2, 3))
    )
    backup_at = round(random_.uniform(1.0, 4.0), 2)
    restore = {"after_s": round(random_.uniform(0.0, 4.0), 2), "elsewhere": random_.random() < 0.5}
    operations = [Operation(backup_at, "restore", restore)]
    for kind in random_.choices(["kill_agent", "kill_program", "kill_server", "leave_agent"], k=random_.randint(0, 2)):
        values: dict[str, Any] = {"which": random_.randrange(100)}
        if kind == "kill_server":
            values = {"server": 0, "down_s": 0.2}
        elif kind == "kill_agent":
            values = {"agent": random_.randrange(agents), "down_s": _moment(random_, 0.8)}
        elif kind == "leave_agent":
            values = {"agent": random_.randrange(agents), "for_s": round(random_.uniform(1.0, 9.0), 2)}
        operations.append(Operation(round(random_.uniform(0.3, backup_at + 6.0), 2), kind, values))
    return Plan(
        seed=seed,
        runtime="process",
        agents=agents,
        spreads=agents > 1,
        servers=1,
        jobs=jobs,
        operations=tuple(sorted(operations, key=lambda operation: operation.at)),
        length=0.0,
    )


def _lasting(random_: random.Random) -> Script:
    """Programs that run for some seconds."""
    lines = random_.randint(10, 60)
    return {task: [["polite", 2, 0], ["say", "stdout", lines, 0.1], ["exit", 0]] for task in ("master", "worker")}


def _talkative(lines: int, pause_s: float) -> Script:
    """Programs that say much: while their agent is lost, and while their supervisor is killed."""
    return {
        task: [["polite", 3, 0], ["burst", stream, 1000, 0], ["say", stream, lines, pause_s], ["exit", 0]]
        for task, stream in (("master", "stdout"), ("worker", "stderr"))
    }


_EVALUATORS: Sequence[list[list[Any]]] = (
    [["say", "stdout", 2, 0.05], ["exit", 3]],  # until its job fails of it
    [["say", "stdout", 2, 0.05], ["die", 9, 2], ["polite", 3, 0], ["sleep", 600]],
    [["say", "stdout", 2, 0.05], ["die", 11, 1], ["deaf"], ["burst", "stderr", 300, 0], ["sleep", 600]],
    [["say", "stderr", 2, 0.05], ["exit", 0]],
)


def _job(random_: random.Random, number: int, length: float) -> PlannedJob:
    workers = random_.choice([0, 0, 1, 1, 1, 2])
    script = {"master": _steps(random_), "worker": _steps(random_)} if workers else {"master": _steps(random_)}
    own = random.Random(str(random_.getstate()))  # so that older seeds draw what they drew
    if own.random() < 0.35:
        script["evaluator"] = own.choice(_EVALUATORS)
    endless = random_.random() < 0.2
    if endless:
        for task in script.keys() - {"evaluator"}:
            script[task][-1:] = [["say", "stdout", 3, 0.2], ["sleep", 600]]
    return PlannedJob(f"job_{number}", round(random_.uniform(0, length * 0.6), 2), workers, script, endless)


def _steps(random_: random.Random) -> list[list[Any]]:
    steps: list[list[Any]] = []
    match random_.choice(["deaf", "polite", "plain", "plain"]):
        case "deaf":
            steps.append(["deaf"])
        case "polite":
            steps.append(["polite", random_.choice([1, 3, 200]), random_.choice([0, 0, 3])])
    if random_.random() < 0.15:
        steps.append(["child", 30])
    for _ in range(random_.randint(0, 3)):
        stream = random_.choice(["stdout", "stdout", "stderr"])
        match random_.choice(["say", "say", "burst", "sleep"]):
            case "say":
                steps.append(["say", stream, random_.randint(1, 8), random_.choice([0.0, 0.02, 0.1])])
            case "burst":
                steps.append(["burst", stream, random_.choice([10, 300, 3000]), random_.choice([0, MAX_WIDTH])])
            case "sleep":
                steps.append(["sleep", round(random_.uniform(0.0, 0.5), 2)])
    if random_.random() < 0.3:
        steps.append(["tail", "stderr"])
    ending = random_.random()
    if ending < 0.12:
        steps.append(["die", random_.choice([9, 9, 11, 15]), random_.randint(1, 2)])
    elif ending < 0.25:
        steps.append(["exit", random_.choice([1, 3, 77])])
    else:
        steps.append(["exit", 0])
    return steps


@dataclass(frozen=True, slots=True)
class _Crowd:
    """Servers, agents and jobs. `slow` is how much longer everything takes than with processes."""

    jobs: int
    agents: int
    servers: int
    slow: float

    @property
    def sides(self) -> list[str]:
        return ["people", *(f"agent-{n}" for n in range(self.agents))]

    @property
    def clocks(self) -> list[str]:
        return [*(f"server-{n}" for n in range(self.servers)), *(f"agent-{n}" for n in range(self.agents))]


def _moment(random_: random.Random, longest: float) -> float:
    """Mostly short, sometimes not."""
    return round(longest * random_.random() ** 2, 2)


def _cancel(random_: random.Random, crowd: _Crowd) -> dict[str, Any]:
    return {"job": random_.randrange(crowd.jobs), "times": random_.choice([1, 1, 2])}


def _server_down(random_: random.Random, crowd: _Crowd) -> dict[str, Any]:
    return {"server": random_.randrange(crowd.servers), "down_s": _moment(random_, 0.8)}


def _agent_down(random_: random.Random, crowd: _Crowd) -> dict[str, Any]:
    return {"agent": random_.randrange(crowd.agents), "down_s": _moment(random_, 0.8)}


def _agent(random_: random.Random, crowd: _Crowd) -> dict[str, Any]:
    return {"agent": random_.randrange(crowd.agents)}


def _replica(random_: random.Random, _crowd: _Crowd) -> dict[str, Any]:
    return {"which": random_.randrange(100)}


def _paused(random_: random.Random, _crowd: _Crowd) -> dict[str, Any]:
    return {"which": random_.randrange(100), "for_s": _moment(random_, 1.0)}


def _disturb(random_: random.Random, crowd: _Crowd) -> dict[str, Any]:
    """Shares of the requests that this happens to, for a while."""
    faults = random_.sample(["refused", "answer_lost", "repeated", "cut_short", "late"], 2)
    shares = {fault: random_.choice([0.2, 0.5]) for fault in faults}
    for_s = round(random_.uniform(0.3, 1.5) * crowd.slow, 2)
    return {"side": random_.choice(crowd.sides), "for_s": for_s, **shares}


def _trap(random_: random.Random, crowd: _Crowd) -> dict[str, Any]:
    call, is_done = random_.randint(0, 40), random_.random() < 0.6
    return {**_agent_down(random_, crowd), "call": call, "done": is_done}


def _disturb_cluster(random_: random.Random, crowd: _Crowd) -> dict[str, Any]:
    faults = random_.sample(["refused", "busy", "lost", "expired"], 2)
    shares = {fault: random_.choice([0.3, 0.7]) for fault in faults}
    return {"for_s": round(random_.uniform(0.3, 1.5) * crowd.slow, 2), **shares}


def _for_a_while(random_: random.Random, _: _Crowd) -> dict[str, Any]:
    return {"for_s": _moment(random_, 2.0)}


def _cut(random_: random.Random, crowd: _Crowd) -> dict[str, Any]:
    how = random_.choice(["refuses", "swallows"])
    return {"side": random_.choice(crowd.sides), "how": how, "for_s": _moment(random_, 1.5)}


def _jump(random_: random.Random, crowd: _Crowd) -> dict[str, Any]:
    seconds = random_.choice([-3600, 3600, -5, 5])
    return {"who": random_.choice(crowd.clocks), "seconds": seconds, "for_s": _moment(random_, 1.5)}


_DRAWS: Mapping[str, Callable[[random.Random, _Crowd], dict[str, Any]]] = {
    "cancel": _cancel,
    "kill_server": _server_down,
    "kill_agent": _agent_down,
    "end_server": _server_down,
    "end_agent": _agent_down,
    "pause_server": _server_down,
    "pause_agent": _agent_down,
    "freeze_agent": _agent,
    "kill_watchdog": _agent,
    "kill_program": _replica,
    "pause_program": _paused,
    "kill_supervisor": _replica,
    "trap_agent": _trap,
    "delete_pod": _replica,
    "remove_pod": _replica,
    "preempt_pod": _replica,
    "pause_kubelet": _for_a_while,
    "disturb_cluster": _disturb_cluster,
    "cut_cluster": _for_a_while,
    "disturb": _disturb,
    "cut": _cut,
    "jump": _jump,
}
