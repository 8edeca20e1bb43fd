"""An engine that spans hosts, from what it does to what a user sees: the fake runtime with every weakness of one."""

from pathlib import Path
from typing import Any

import pytest

from beds.world import Machine, World
from trainyard_agent.engines.fake import FOREVER, Exit, FakeRuntime, Print, Programs, Script, by_module
from trainyard_agent.runtimes.base import Launch, Traits
from trainyard_protocol.job.resources import Capacity, Pool
from trainyard_protocol.states import JobState, Reason, ReplicaState, RunState
from trainyard_protocol.wire.agents import CLUSTER
from trainyard_protocol.wire.logs import LogLine, digest

CHIEF, WORKER = "master-replica-0", "worker-replica-0"
NO_ROOM = "0/8 nodes are available: 8 Insufficient nvidia.com/gpu"
ENGINE = Traits(starts_whole=False, coarse_clock=True, splits_streams=False, keeps_logs=False)
PROGRAMS = by_module(
    {
        "forever.task": {"*": FOREVER},
        "prints.task": {"*": Script((*((float(n), Print(f"line {n}")) for n in range(8)), (8.0, Exit(0))))},
        "waits.task": {CHIEF: FOREVER, "*": Script(starts_after_s=10**6, waits=NO_ROOM)},
    }
)


def engine(world: World, programs: Programs = PROGRAMS) -> Machine:
    machine = world.machine("cluster", programs)
    nodes = Pool(nodes=2, vcpus=4, memory_bytes=16 * 10**9, accelerator_type="NVIDIA_TESLA_T4", accelerator_count=1)
    machine.info = machine.info.model_copy(
        update={"kind": CLUSTER, "capacity": Capacity.of_pools(nodes), "runs_images": True}
    )
    machine.runtime = FakeRuntime(machine.host, traits=ENGINE)
    machine.boot()
    return machine


async def test_what_a_run_waits_for_is_shown_until_it_is_given_back_for_a_new_one(world: World) -> None:
    engine(world)
    await world.settle()
    await world.begin("j", workers=1, module="waits.task")

    detail = await world.detail("j")
    assert detail.state is JobState.PREPARING
    assert [replica.waits for replica in detail.runs[0].replicas] == ["", NO_ROOM]
    assert detail.runs[0].activity == f"1 of 2 wait: {NO_ROOM}"
    assert f"1 of 2 wait: {NO_ROOM}." in [event.message for event in detail.events]
    why = (await world.call("GET", "/trainyard/v1/projects/p/jobs/j/why")).json()
    assert why["summary"].endswith(f": 1 of 2 wait: {NO_ROOM}.")
    assert NO_ROOM in (await world.call("GET", "/cluster")).text
    assert NO_ROOM in (await world.call("GET", "/projects/p/jobs/j")).text

    world.clock.advance(600)
    await world.settle()

    detail = await world.detail("j")
    verdict = detail.runs[0].verdict
    assert verdict is not None
    assert (detail.runs[0].state, verdict.reason) == (RunState.ENDED, Reason.GIVEN_BACK)
    message = f"could not be started yet: {WORKER} was not started for 600 s: {NO_ROOM}."
    assert message in verdict.message
    assert detail.runs[0].activity == ""
    why = (await world.call("GET", "/trainyard/v1/projects/p/jobs/j/why")).json()
    assert why["summary"].startswith("It backs off: its next run starts at ")
    assert why["summary"].endswith(message)
    world.clock.advance(60)
    await world.settle()
    assert [run.number for run in (await world.detail("j")).runs] == [1, 2]


async def test_job_waits_out_a_full_cluster_without_a_retry_until_its_wait_time_is_over(tmp_path: Path) -> None:
    """It may take any number of start deadlines: no run that has not started is a failure."""
    is_full = True

    def programs(launch: Launch) -> Script:
        return PROGRAMS(launch) if is_full else FOREVER

    world = World(tmp_path, retries=1)
    try:
        engine(world, programs)
        await world.settle()
        await world.submit("patient", workers=1, module="waits.task")
        await world.submit("hurried", workers=1, module="waits.task", scheduling={"maxWaitTime": "2000s"})
        for _ in range(23):  # 46 minutes
            await world.settle(2)
            world.clock.advance(120)
        patient, hurried = await world.detail("patient"), await world.detail("hurried")
        assert patient.state in (JobState.QUEUED, JobState.PREPARING)
        assert 4 <= len(patient.runs) <= 5
        assert {run.verdict.reason for run in patient.runs if run.verdict} == {Reason.GIVEN_BACK}
        assert hurried.state is JobState.CANCELLED
        assert "maxWaitTime of 2000s" in str(hurried.job["errorMessage"])
        assert len(hurried.runs) > 1

        is_full = False
        for _ in range(6):
            await world.settle(2)
            world.clock.advance(120)
        patient = await world.detail("patient")
        assert patient.state is JobState.RUNNING
        assert not [event for event in patient.events if "retry 1" in event.message]
    finally:
        await world.close()


async def test_preempted_run_gets_a_new_one_that_costs_no_retry(world: World) -> None:
    machine = engine(world)
    await world.settle()
    await world.begin("j", workers=1, module="forever.task")
    (run_id,) = machine.host.runs

    machine.host.preempt(run_id, WORKER)
    await world.settle(6)

    detail = await world.detail("j")
    verdict = detail.runs[0].verdict
    assert verdict is not None
    assert (verdict.replica, verdict.reason) == (WORKER, Reason.PREEMPTED)
    assert verdict.message == "The replica worker 0 was preempted. Its engine took it away for other work."
    assert (detail.state, len(detail.runs)) == (JobState.RUNNING, 2)
    assert not [event for event in detail.events if "retry" in event.message]


async def test_engine_whose_agent_is_silent_keeps_its_runs_until_a_cancel_gives_up_on_them(world: World) -> None:
    machine = engine(world)
    await world.settle()
    await world.begin("j", module="forever.task")
    world.machine("host", PROGRAMS)
    await world.settle()

    machine.network.cut = True
    for _ in range(5):
        world.clock.advance(10_000)
        await world.settle()
    detail = await world.detail("j")
    assert detail.state is JobState.RUNNING
    assert [replica.state for replica in detail.runs[0].replicas] == [ReplicaState.UNKNOWN]
    (run_id,) = machine.host.runs
    assert [replica.state for replica in machine.runtime.observe(run_id)] == [ReplicaState.RUNNING]

    await world.cancel("j")
    await world.settle()
    detail = await world.detail("j")
    assert (detail.state, len(detail.runs)) == (JobState.CANCELLED, 1)
    machine.network.cut = False
    await world.settle(6)
    assert machine.host.runs == {}


async def test_run_in_an_engine_has_amounts_that_everything_counts(world: World) -> None:
    machine = engine(world)
    await world.settle()
    gpu = {"acceleratorConfig": {"type": "NVIDIA_TESLA_T4", "count": "1"}, "imageUri": "image:1"}
    container = gpu | {"containerArgs": ["-m", "forever.task"]}
    image: dict[str, Any] = {"pythonModule": "", "masterType": "n1-standard-4", "masterConfig": container}
    await world.begin("j", workers=1, workerType="n1-standard-4", workerConfig=container, **image)
    assert (await world.detail("j")).state is JobState.RUNNING

    launches = [launch for _, launch in machine.host.launches]
    assert [(one.cpus, one.gpus, one.vcpus) for one in launches] == [((), (), 4)] * 2
    assert {(one.accelerator_type, one.accelerator_count) for one in launches} == {("NVIDIA_TESLA_T4", 1)}
    (view,) = (await world.call("GET", "/trainyard/v1/status")).json()["agents"]
    assert (view["cpus_given"], view["accelerators_given"], view["gpus_given"]) == (8, 2, [])
    page = (await world.call("GET", "/cluster")).text
    assert "2 with 4 vCPU" in page
    assert "<b>2</b> of 2 allocated" in page

    await world.submit("k", **image)
    world.tick()
    why = (await world.call("GET", "/trainyard/v1/projects/p/jobs/k/why")).json()
    assert "and 2 GPUs, of which 0 are free" in why["summary"]
    assert why["holders"][0]["holds"] == "8 vCPU, 30.0 GB and 2 x NVIDIA_TESLA_T4"


async def test_capacity_that_shrinks_ends_nothing_and_one_that_grows_starts_more(world: World) -> None:
    machine = engine(world)
    await world.settle()
    await world.begin("runs", workers=1, module="forever.task")
    whole = machine.info.capacity

    for pools in ((Pool(nodes=1, vcpus=1, memory_bytes=10**9),), ()):
        machine.info = machine.info.model_copy(update={"capacity": Capacity.of_pools(*pools)})
        await world.settle()
        assert (await world.detail("runs")).state is JobState.RUNNING
        (view,) = (await world.call("GET", "/trainyard/v1/status")).json()["agents"]
        assert sum(pool["vcpus"] for pool in view["capacity"]["pools"]) == len(pools)
        assert f"<b>2</b> of {len(pools)} allocated" in (await world.call("GET", "/cluster")).text

    shapes = (Pool(nodes=2, vcpus=1, memory_bytes=n * 10**8) for n in range(1, 11))
    machine.info = machine.info.model_copy(update={"capacity": Capacity.of_pools(*shapes)})
    await world.settle()
    page = (await world.call("GET", "/cluster")).text
    assert "2 with 1 vCPU, 1.0 GB" in page
    assert "4 smaller" in page

    await world.begin("waits", module="forever.task", masterType="local-2")
    why = (await world.call("GET", "/trainyard/v1/projects/p/jobs/waits/why")).json()
    assert "has no room on the agents here: needs 2 vCPU and 4.0 GB" in why["summary"]

    machine.info = machine.info.model_copy(update={"capacity": whole})
    await world.settle()
    assert [(await world.detail(job)).state for job in ("runs", "waits")] == [JobState.RUNNING] * 2


@pytest.mark.parametrize(("dropped", "missing"), [(3, []), (5, [3, 4])])
async def test_log_whose_old_lines_the_engine_drops_goes_on_and_says_what_may_be_missing(
    world: World, dropped: int, missing: list[int]
) -> None:
    machine = engine(world)
    await world.settle()
    await world.begin("j", module="prints.task")
    world.clock.advance(2.5)
    await world.settle()  # lines 0 to 2 are at the server
    (run_id,) = machine.host.runs

    await machine.close()  # the agent is away
    world.clock.advance(4)
    machine.host.drop_log(run_id, CHIEF, dropped)
    machine.runtime = FakeRuntime(machine.host, traits=ENGINE)
    machine.boot()
    await world.settle()
    world.clock.advance(10)
    await world.settle(6)

    assert (await world.detail("j")).state is JobState.SUCCEEDED
    lines = [(entry.number, entry.text) for entry in await world.log("j") if entry.task == CHIEF]
    assert lines == list(enumerate(f"line {n}" for n in range(8) if n not in missing))
    damaged = [event.message for event in (await world.detail("j")).events if event.kind == "log-damaged"]
    first, last = (machine.host.time_at(time).strftime("%H:%M:%S") for time in (2.0, 5.0))
    assert len(damaged) == bool(missing)
    assert all("may lack lines between" in text and first in text and last in text for text in damaged)
    summary, _ = world.app.state.use_cases.job_details.summary("p", "j")
    printed = [LogLine(time="", stream="stdout", text=text) for _, text in lines]
    assert summary.sha256 == {f"1/{CHIEF}": digest(printed)}
