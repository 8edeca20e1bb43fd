"""Random histories of submit, sync, loss, death, restart and time over the real store, the real lifecycle, the
real agent and fake runtimes: processes and containers beside each other, with an engine that comes and goes, on
machines that come and go, and that some others do not reach. After every step nothing may be true that must never be
true; in the end everything has ended, and every line that a program wrote is there once.
"""

import asyncio
import json
import re
import shutil
import tempfile
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from beds import live_rows, open_engines
from beds.history_checks import check_ending, check_history
from beds.world import Machine, World
from trainyard_agent.engines.docker.client import EngineInfo
from trainyard_agent.engines.docker.probe import EngineState
from trainyard_agent.engines.fake import FOREVER, Exit, Measure, Print, Script
from trainyard_agent.runtimes.base import Launch
from trainyard_protocol.answers.jobs import JobDetail
from trainyard_protocol.answers.log_views import SERVICE_TASK
from trainyard_protocol.job.runtimes import load_runtimes
from trainyard_protocol.states import FAULTS, FINAL_JOB_STATES, Fault, JobState, Outcome, Reason, ReplicaState
from trainyard_server.control.controller import Controller
from trainyard_server.domain.scheduling.scheduler import Placement

LINES = tuple((0.2 * n, Print(f"line {n}")) for n in range(5))
PROGRAMS = {
    "succeeds.task": Script((*LINES, (1.0, Exit(0)))),
    "slow.task": Script((*LINES, (30.0, Print("nearly")), (40.0, Exit(0))), starts_after_s=2.0),
    "measures.task": Script((*LINES, (0.5, Measure(1, 0.5)), (0.9, Measure(2, 0.25)), (1.0, Exit(0)))),
    "fails.task": Script((*LINES, (1.5, Exit(3)))),
    "is_killed.task": Script((*LINES, (1.5, Exit(137)))),
    "vanishes.task": Script((*LINES, (0.7, Exit(None)))),
    "stubborn.task": Script(LINES, ignores_sigterm=True),
    "forever.task": FOREVER,
    "stalls.task": Script(tuple((0.3 * n, Print(json.dumps({"event": "progress", "step": n}))) for n in range(1, 4))),
}
CPUS, MOST_MACHINES, LEAST_LIFE_S = 3, 4, 5.0
NUMBERS = st.integers(0, MOST_MACHINES - 1)
FURTHEST = 4
RETRIES = 2
PLACE = re.compile(r'(?<="event": "checkpoint", "step": )\d+')
ENGINE = EngineState(EngineInfo("engine", "20.10", cpus=3, memory_bytes=1 << 40, live_restore=False))
AWAY = replace(ENGINE, problem="no Docker engine answers")
ENDLESS = ("stubborn.task", "forever.task")
RUNTIMES = load_runtimes()
EVALUATOR = {"evaluatorType": "local-1", "evaluatorCount": 1}


def in_container(module: str) -> dict[str, Any]:
    """The fields of a job that runs the module in an image."""
    return {"pythonModule": "", "masterConfig": container(module), "workerConfig": container(module)}


def container(*arguments: str) -> dict[str, Any]:
    return {"imageUri": "image:1", "containerArgs": ["-m", *arguments]}


def advances(life: int) -> Script:
    """A program that is killed in each life, and gets a checkpoint further in each of the first ones."""
    checkpoint = json.dumps({"event": "checkpoint", "step": min(life, FURTHEST)})
    return Script((*LINES, (1.0, Print(checkpoint)), (1.5, Exit(137))))


PROGRAMS["advances.task"] = advances(0)


def module_of(launch: Launch) -> str:
    """The job's. An evaluator fails, or does as the others do, or waits to be told to finish."""
    if launch.task.startswith("evaluator"):
        return launch.command[-1]
    return launch.command[launch.command.index("-m") + 1]


class TrainyardMachine(RuleBasedStateMachine):
    jobs = Bundle("jobs")

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="trainyard-"))
        self.world = World(self.directory, retries=RETRIES, stall_limit_s=8.0)
        self.modules: dict[str, str] = {}
        self.evaluators: dict[str, str] = {}
        self.last: dict[str, JobDetail] = {}
        self.gone: set[str] = set()
        self.apart: list[str] = []
        self.loop = asyncio.new_event_loop()
        self.patched = ExitStack()
        self.patched.enter_context(mock.patch.object(Controller, "_place", self.watched(Controller._place)))
        self.patched.enter_context(mock.patch.object(open_engines, "load_runtimes", return_value=RUNTIMES))

    def watched(self, place: Callable[..., bool]) -> Callable[..., bool]:
        """The method that starts placed runs; notes those whose machines have reported that they are apart."""

        def watching(controller: Controller, placements: Sequence[Placement], *more: Any) -> bool:
            with self.world.app.state.use_cases.backend.store.read() as reader:
                unreached = {row.agent_id: set(row.info.get("unreached", ())) for row in reader.agents()}
            for placement in placements:
                agents = {part.agent_id for part in placement.parts}
                if any(unreached[agent] & agents for agent in agents):
                    self.apart.append(f"{placement} on {unreached}")
            return place(controller, placements, *more)

        return watching

    def do(self, coroutine: Any) -> Any:
        return self.loop.run_until_complete(coroutine)

    def program(self, launch: Launch) -> Script:
        module = module_of(launch)
        if module != "advances.task":
            return PROGRAMS[module]
        job, machines = launch.environment["CLOUD_ML_JOB_ID"], self.world.machines.values()
        before = [other for machine in machines for _, other in machine.host.launches]
        lives = [one for one in before if one.environment["CLOUD_ML_JOB_ID"] == job]
        return advances(1 + sum(one.task == launch.task for one in lives))

    @initialize(
        target=jobs,
        machines=st.integers(1, MOST_MACHINES),
        has_peers=st.booleans(),
        module=st.sampled_from(sorted(PROGRAMS)),
        workers=st.sampled_from([1, 3, 5]),
    )
    def start(self, machines: int, has_peers: bool, module: str, workers: int) -> Any:
        self.world.has_peers = has_peers
        for _ in range(machines):
            self.machine_joins()
        self.do(self.world.settle(1))
        return self.submit(module=module, workers=workers, image=False, evaluator="")

    @rule(
        target=jobs,
        module=st.sampled_from(sorted(PROGRAMS)),
        workers=st.sampled_from([0, 0, 1, 1, 2, 3, 5]),
        image=st.booleans(),
        evaluator=st.sampled_from(["", "", "is_killed.task", "fails.task", "succeeds.task", "stubborn.task"]),
    )
    def submit(self, module: str, workers: int, image: bool, evaluator: str) -> Any:
        if len(self.modules) >= 5:
            return multiple()
        job_id = f"job_{len(self.modules)}"
        fields = in_container(module) if image else {}
        if evaluator:
            own: Any = {"evaluatorConfig": container(module, evaluator)} if image else {"args": [evaluator]}
            fields = {**fields, **EVALUATOR, **own}
        self.do(self.world.submit(job_id, workers, module, **fields))
        self.modules[job_id], self.evaluators[job_id] = module, evaluator
        return job_id

    @rule(which=NUMBERS)
    def engine_goes_away_or_comes_back(self, which: int) -> None:
        machine = self.machine_number(which)
        machine.engine = AWAY if machine.engine is ENGINE else ENGINE

    @rule(job=jobs)
    def cancel(self, job: str) -> None:
        self.do(self.world.cancel(job))

    @rule()
    def tick(self) -> None:
        self.world.tick()

    @rule(which=NUMBERS)
    def sync(self, which: int) -> None:
        self.do(self.machine_number(which).step())

    @rule(which=NUMBERS, answers=st.integers(1, 3))
    def sync_and_lose_answers(self, which: int, answers: int) -> None:
        machine = self.machine_number(which)
        machine.network.lose = answers
        self.do(machine.step())
        machine.network.lose = 0

    @rule(which=NUMBERS, seconds=st.sampled_from([5.0, 45.0, 700.0]))
    def partition(self, which: int, seconds: float) -> None:
        machine = self.machine_number(which)
        machine.network.cut = True
        for _ in range(10):  # the agent lives on, and keeps its lease
            self.pass_time(seconds / 10, machine)
            self.world.tick()
        machine.network.cut = machine.name in self.gone

    @rule()
    def machine_joins(self) -> None:
        if (number := len(self.world.machines)) < MOST_MACHINES:
            self.world.machine(f"m{number}", self.program, cpus=CPUS, engine=ENGINE)

    @rule(which=NUMBERS)
    def machine_leaves_or_returns(self, which: int) -> None:
        """It reaches nobody: neither the server nor other machines."""
        machine = self.machine_number(which)
        self.gone ^= {machine.name}
        machine.network.cut = machine.alone = machine.name in self.gone

    @rule()
    def machines_are_apart_or_reach_each_other(self) -> None:
        self.world.apart = not self.world.apart

    @rule(which=NUMBERS)
    def machine_is_moved_behind_nat_or_from_there(self, which: int) -> None:
        machine = self.machine_number(which)
        machine.behind_nat = not machine.behind_nat

    @rule(one=NUMBERS, other=NUMBERS)
    def way_is_closed_or_opened(self, one: int, other: int) -> None:
        self.world.closed ^= {(self.machine_number(one).name, self.machine_number(other).name)}

    @rule(which=NUMBERS)
    def agent_dies_and_comes_back(self, which: int) -> None:
        machine = self.machine_number(which)
        self.do(machine.close())
        machine.boot()

    @rule()
    def server_dies_and_comes_back(self) -> None:
        self.world.restart_server()

    @rule(which=NUMBERS, data=st.data())
    def replica_vanishes(self, which: int, data: st.DataObject) -> None:
        host = self.machine_number(which).host
        alive = sorted((run_id, task) for run_id, run in host.runs.items() for task in run.replicas)
        if alive:
            host.vanish(*data.draw(st.sampled_from(alive)))

    @rule(which=NUMBERS)
    def machine_is_shut_down(self, which: int) -> None:
        self.machine_number(which).host.stop_all()

    @rule(seconds=st.sampled_from([0.1, 0.5, 2.0, 10.0, 31.0]))
    def time_passes(self, seconds: float) -> None:
        self.pass_time(seconds)

    def pass_time(self, seconds: float, *living: Machine) -> None:
        """Let time pass for these machines, and for those that would outlive a lease."""
        leased = list(self.world.machines.values()) if self.world.has_peers else [*living, *map(self.named, self.gone)]
        left = seconds
        while left > 0:
            step = min(left, LEAST_LIFE_S) if self.world.has_peers or self.gone else left
            self.world.clock.advance(step)
            for machine in leased:
                self.do(machine.step())
            left -= step

    # What must always be true.

    @invariant()
    def gangs_are_placed_on_machines_that_have_reported_to_reach_each_other(self) -> None:
        assert not self.apart

    @invariant()
    def no_job_fails_of_machines_that_do_not_reach_each_other(self) -> None:
        for detail in self.last.values():
            check_cause(detail)

    @invariant()
    def no_replica_was_ever_started_twice(self) -> None:
        for machine in self.world.machines.values():
            started = [(run_id, launch.task) for run_id, launch in machine.host.launches]
            assert len(started) == len(set(started))

    @invariant()
    def no_two_runs_of_a_job_are_alive(self) -> None:
        """But for an evaluator that was started again, alone."""
        owners: dict[tuple[str, bool], set[str]] = {}
        for machine in self.world.machines.values():
            jobs, gangs = job_of_runs(machine), gang_of_runs(machine)
            for run_id, tasks in alive_replicas(machine).items():
                for task in tasks:
                    owners.setdefault((jobs[run_id], task.startswith("evaluator")), set()).add(gangs[run_id])
        assert all(len(runs) == 1 for runs in owners.values()), owners

    @invariant()
    def no_resource_belongs_to_two_runs_of_either_runtime(self) -> None:
        for machine in self.world.machines.values():
            alive = alive_replicas(machine)
            held: dict[int, str] = {}
            memory = 0
            for run_id, launch in machine.host.launches:
                if launch.task in alive.get(run_id, ()):
                    memory += launch.memory_bytes
                    for cpu in launch.cpus:
                        assert held.setdefault(cpu, run_id) == run_id
            assert memory <= machine.info.capacity.memory_bytes

    @invariant()
    def only_jobs_with_an_image_run_in_containers(self) -> None:
        for machine in self.world.machines.values():
            images = {run_id: launch.image for run_id, launch in machine.host.launches}
            for run_id, run in machine.host.runs.items():
                if run_id in images:
                    assert run.handle.runtime == ("docker" if images[run_id] else "process")

    @invariant()
    def memory_is_what_the_database_has(self) -> None:
        assert live_rows.differences(self.world.app.state.use_cases.backend.store) == []

    @invariant()
    def histories_are_legal_and_replay_to_the_state(self) -> None:
        for job_id in self.modules:
            detail = self.do(self.world.detail(job_id))
            check_history(detail)
            before = self.last.get(job_id)
            if before is not None:
                assert detail.events[: len(before.events)] == before.events
                if before.state in FINAL_JOB_STATES:
                    assert detail.job == before.job
            self.last[job_id] = detail

    @invariant()
    def retries_end_without_progress_and_are_many_with_it(self) -> None:
        for job_id in self.modules:
            check_retries(self.last[job_id])

    @invariant()
    def lines_are_numbered_without_gap_or_repeat(self) -> None:
        for job_id, module in self.modules.items():
            self.check_lines(job_id, module)

    def teardown(self) -> None:
        try:
            self.do(self.finish())
            assert not self.apart
        finally:
            self.patched.close()
            self.do(self.world.close())
            self.loop.close()
            shutil.rmtree(self.directory)

    async def finish(self) -> None:
        """Heal everything, cancel what would never end, and let time do the rest. The ways between machines are the
        last: before, each gang has ended that some machines hold which reach each other."""
        for machine in self.world.machines.values():
            machine.network.cut, machine.network.lose, machine.alone = False, 0, False
            machine.engine = ENGINE
            await self.world.call("PATCH", f"/trainyard/v1/agents/{machine.name}", {"draining": False})
        await self.world.settle()  # by now every job that can never start knows it
        for job_id, module in self.modules.items():
            if module in ENDLESS or impossible(await self.world.detail(job_id)):
                await self.world.cancel(job_id)
        left = await self.end_all([job_id for job_id in self.modules if self.is_held(await self.world.detail(job_id))])
        assert not left, "machines that reach each other hold it"
        self.world.apart = False
        self.world.closed.clear()
        for machine in self.world.machines.values():
            machine.behind_nat = False
            await machine.close()
            machine.boot()  # it does not wait for long before it tries those again that it did not reach
        await self.end_all(self.modules)
        await self.world.settle()
        for job_id, module in self.modules.items():
            detail = await self.world.detail(job_id)
            assert detail.state in FINAL_JOB_STATES, detail
            check_history(detail)
            check_ending(detail)
            check_cause(detail)
            await self.check_lines_async(job_id, module)
        for machine in self.world.machines.values():
            assert not machine.host.runs, "a run was left behind on the machine"

    async def end_all(self, job_ids: Collection[str]) -> list[JobDetail]:
        """Let time pass until these jobs have ended. Returns those that have not."""
        details = list[JobDetail]()
        for _ in range(250):
            await self.world.settle(1)
            details = [await self.world.detail(job_id) for job_id in job_ids]
            if all(detail.state in FINAL_JOB_STATES for detail in details):
                return []
            self.world.clock.advance(10.0)
        return [detail for detail in details if detail.state not in FINAL_JOB_STATES]

    def is_held(self, detail: JobDetail) -> bool:
        """Whether machines hold its replicas, one for each CPU, that all reach each other."""
        fields, machines = detail.job["trainingInput"], sorted(self.world.machines)
        replicas = 1 + int(fields.get("workerCount", 0)) + int(fields.get("evaluatorCount", 0))
        sets = combinations(machines, min(len(machines), -(-replicas // CPUS)))
        return any(len(some) * CPUS >= replicas and self.meet(some) for some in sets)

    def meet(self, names: Collection[str]) -> bool:
        has_way = self.world.has_way
        return all(has_way(one, other) and has_way(other, one) for one, other in combinations(names, 2))

    def named(self, name: str) -> Machine:
        return self.world.machines[name]

    def check_lines(self, job_id: str, module: str) -> None:
        self.do(self.check_lines_async(job_id, module))

    async def check_lines_async(self, job_id: str, module: str) -> None:
        """Each log is a prefix of what the program says, whole once it is complete."""
        entries = await self.world.log(job_id)
        assert [entry.cursor for entry in entries] == list(range(1, len(entries) + 1))
        printed = [printed_by(module), printed_by(self.evaluators.get(job_id) or module)]
        logs: dict[tuple[int, str], list[str]] = {}
        for entry in entries:
            lines = logs.setdefault((entry.run, entry.task), [])
            if entry.task != SERVICE_TASK:
                assert entry.number == len(lines)
                lines.append(PLACE.sub("0", entry.text))
        for (_, task), lines in logs.items():
            assert lines == printed[task.startswith("evaluator")][: len(lines)]

    def machine_number(self, which: int) -> Machine:
        machines = list(self.world.machines.values())
        return machines[which % len(machines)]


def job_of_runs(machine: Machine) -> dict[str, str]:
    names = ("CLOUD_ML_JOB_ID", "CLOUD_ML_TRIAL_ID")
    return {
        run_id: ".".join(launch.environment[name] for name in names if name in launch.environment)
        for run_id, launch in machine.host.launches
    }


def gang_of_runs(machine: Machine) -> dict[str, str]:
    """Something that all parts of a run have, and no other run: the addresses of its gang."""
    return {
        run_id: launch.environment["CLUSTER_SPEC"].partition('"task"')[0] for run_id, launch in machine.host.launches
    }


def alive_replicas(machine: Machine) -> dict[str, set[str]]:
    """run -> tasks, of every replica that lives on the machine."""
    return {
        run_id: {
            report.task
            for report in machine.runtime.observe(run_id)
            if report.state in (ReplicaState.STARTING, ReplicaState.RUNNING)
        }
        for run_id in machine.host.runs
    }


def check_cause(detail: JobDetail) -> None:
    """Machines that do not reach each other are no job's failure."""
    if detail.state is JobState.FAILED and detail.verdict is not None:
        assert detail.verdict.reason is not Reason.UNREACHED, detail
        assert "does not reach" not in detail.verdict.message, detail


def check_retries(detail: JobDetail) -> None:
    """Infrastructure failures in a row, since a run got further than all before it, cost retries; no others do."""
    used, checkpoints, steps = 0, -1, -1
    for run in detail.runs:
        assert used <= RETRIES, f"run {run.number} of {detail.job}"
        if run.verdict is None or run.verdict.outcome is not Outcome.FAILED:
            continue
        checkpoint = max((-1 if r.durable_step is None else r.durable_step for r in run.replicas), default=-1)
        step = max((-1 if r.step is None else r.step for r in run.replicas), default=-1)
        is_further = checkpoint > checkpoints or step > steps
        checkpoints, steps = max(checkpoints, checkpoint), max(steps, step)
        if FAULTS[run.verdict.reason] is Fault.INFRASTRUCTURE:
            used = 1 if is_further else used + 1
    last = detail.runs[-1].verdict if detail.runs else None
    if detail.state is JobState.FAILED and last and FAULTS[last.reason] is Fault.INFRASTRUCTURE:
        assert used > RETRIES or any(event.after == JobState.CANCELLING for event in detail.events)


def printed_by(module: str) -> list[str]:
    return [step.text for _, step in PROGRAMS[module].steps if isinstance(step, Print)]


def impossible(detail: JobDetail) -> bool:
    """A gang that no machine of this world could ever hold waits, and says so."""
    return detail.state is JobState.QUEUED and "can never start" in detail.waiting


few_or_many = pytest.mark.parametrize("times", [1, pytest.param(2, marks=pytest.mark.long)], ids=["few", "many"])


def run_histories(machine: type[TrainyardMachine], count: int) -> None:
    """Run this many, each of which has a database of its own."""
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=count,
            stateful_step_count=25,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
        ),
    )


@few_or_many
def test_histories(every_database: str, times: int) -> None:
    run_histories(TrainyardMachine, times * (10 if every_database == "sqlite" else 4))
